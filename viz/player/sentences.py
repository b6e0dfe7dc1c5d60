"""The sentences of the race, computed from the run on screen."""

from __future__ import annotations

from decoding.analysis.metrics import end_to_end_speedup, speedup, static_opt
from decoding.analysis.run_costs import run_costs
from decoding.analysis.steadiness import contradictions, how_timed, timings, unsteady, wavering
from decoding.lookahead.lanes import is_usable
from decoding.records.pairs import about_pair, is_asked
from decoding.records.request import CompareRequest
from decoding.records.text import counted, in_words
from decoding.records.trace import Costs, Run, Trace

from .names import lane_name

SHORT = 8  # tokens: a shorter text shows nothing of speculation


def times(ratio: float) -> str:
    """A speedup in the page's format."""
    return f"{ratio:.2f}×"


def look(run: Run) -> str:
    """One line that says what the page shows."""
    drafting = sum(trace.draft is not None for trace in run.lanes)
    if not drafting:
        return "One text, written by the target alone."
    ways = "One way" if drafting == 1 else f"{in_words(drafting).capitalize()} ways"
    return f"{ways} to let a small model guess for a big one; colours show which guesses held."


def lead_lane(run: Run, point: str = "") -> int:
    """Index of the first sentence's lane: ``point``, else the fastest usable lane.

    The oracle is not usable.
    """
    named = [i for i, trace in enumerate(run.lanes) if trace.lane == point]
    usable = [i for i, trace in enumerate(run.lanes) if is_usable(trace.lane)]
    candidates = named or usable or list(range(len(run.lanes)))
    return max(candidates, key=lambda i: _median_speedup(run, run.lanes[i]) or 0.0, default=0)


def _median_speedup(run: Run, trace: Trace) -> float | None:
    """The speedup that the page says of a lane; None if there is nothing to compare it with."""
    spread = speedup(run, trace)
    return spread.median if spread else None


def opening(run: Run, point: str = "") -> str:
    """ "Here: the same 88 tokens, 2.41× as fast with DISCO." Below 1: slower. Also says if there is no comparison, or
    none that the timings carry, and how often a run was timed that was stopped.
    """
    if not run.lanes:
        return "This run has no lanes."
    trace = run.lanes[lead_lane(run, point)]
    ratio = _median_speedup(run, trace)
    n, name = len(trace.output), lane_name(trace.lane)
    if run.baseline is None:
        return f"Here: {counted(n, 'token')}; no plain lane ran, so there is no speedup."
    if trace is run.baseline or not ratio:
        return f"Here: {counted(n, 'token')} by the target alone; add a lane to compare it with."
    same = "the same " if trace.verdict.same and n == len(run.baseline.output) else ""
    ending = _ended_early(run, trace)
    if contradictions(run):
        return f"Here: {same}{counted(n, 'token')}, but timings vary too much to trust a speedup.{ending}"
    others = _best_other(run, trace) if point else _slow_down(run, trace)
    if timings(run) < run.settings.repeats:
        others += f" ({how_timed(run)})"
    whole = _with_prefill(run, trace, ratio)
    return f"Here: {same}{counted(n, 'token')}, {_how_fast(ratio)} with {name}{others}.{whole}{ending}"


def _with_prefill(run: Run, trace: Trace, ratio: float) -> str:
    """What is left of a gain when both models' reading of the prompt counts, too, where that turns it into a loss."""
    whole = end_to_end_speedup(run, trace)
    if whole is None or not whole.median < 1 < ratio:
        return ""
    return f" With the reading of the prompt, which the draft reads, too, {times(whole.median)}."


def _best_other(run: Run, point: Trace) -> str:
    """The fastest usable lane, if the first sentence is about another one."""
    best = run.lanes[lead_lane(run)]
    ratio = _median_speedup(run, best)
    return f", {_how_fast(ratio)} with {lane_name(best.lane)}" if best is not point and ratio else ""


def _slow_down(run: Run, first: Trace) -> str:
    """The slowest usable lane, if it is slower than plain decoding and the sentence is about another one."""
    usable = [trace for trace in run.lanes if is_usable(trace.lane) and trace is not first]
    ratios = [(_median_speedup(run, trace) or 1.0, lane_name(trace.lane)) for trace in usable]
    slowest, name = min(ratios, default=(1.0, ""))
    return f", {_how_fast(slowest)} with {name}" if slowest <= 1 / 1.05 else ""


def _ended_early(run: Run, trace: Trace) -> str:
    """Advice for a text to continue that the target ended immediately, if the prompt ends with a line break."""
    asked = run.settings
    is_answer = is_asked(asked.chat, run.pair.name)
    if is_answer or not asked.prompt.endswith("\n") or trace.finish != "eos" or len(trace.output) > SHORT:
        return ""
    return " The target ended its text early. To make it continue, end the prompt without a line break."


def _how_fast(ratio: float) -> str:
    return "neither faster nor slower" if 1 / 1.05 < ratio < 1.05 else f"{times(ratio)} as fast"


def check_fact(run: Run) -> str:
    """The measured costs of checking and guessing, or the contradictions between the timings."""
    if found := contradictions(run):
        return unsteady(found)
    guesses = _draft_costs(run)
    return f"Compared with writing one token, checking 6 takes {_longer(run_costs(run).verify(6))}" + (
        f"; a guess takes {guesses} of the time." if guesses else "."
    )


def _longer(ratio: float) -> str:
    """A time compared with another: "14% longer", from twice on "2.30× as long"."""
    if ratio >= 2:
        return f"{times(ratio)} as long"
    return f"{ratio - 1:.0%} longer" if ratio >= 1.005 else "no longer"


def _draft_costs(run: Run) -> str:
    """The measured cost of a guess for every draft that ran, the first sentence's draft first; "" if none."""
    ran = list(dict.fromkeys(trace.draft for trace in run.lanes if trace.draft)) or [run.pair.default_draft]
    own = run_costs(run)
    measured = [name for name in ran if name in own.draft_step]
    return ", ".join(_draft_cost(own, name) + (f" ({name})" if len(ran) > 1 else "") for name in measured)


def _draft_cost(costs: Costs, name: str) -> str:
    c, first = costs.draft_step[name], costs.first_step.get(name, 0.0)
    least = "under 1%" if c < 0.005 else f"{c:.0%}"
    return f"{least} to {c + first:.0%}" if first >= 0.005 else least  # the first after a check


def doubt(run: Run, point: str = "") -> str:
    """A warning if the repeats of the first sentence's lane are far apart; else "". What to do is said once: where
    timings contradict each other, in :func:`check_fact`.
    """
    lead = run.lanes[lead_lane(run, point)] if run.lanes else None
    apart = lead and wavering(run, lead)
    if lead is None or apart is None:
        return ""
    ranged = f"{times(apart[0])} to {times(apart[1])} over the repeats"
    if contradictions(run):
        return f" The timings of {lane_name(lead.lane)} vary ({ranged})."
    again = "the machine may be busy. Run it again when nothing else runs on the machine."
    return f" The timings of {lane_name(lead.lane)} vary ({ranged}); {again}"


def notes(run: Run) -> str:
    """What was noted on the lanes; on all of them, without their names."""
    first = run.lanes[0].notes if run.lanes else []
    common = [note for note in first if all(note in trace.notes for trace in run.lanes)]
    single = [f"{lane_name(trace.lane)}: {note}" for trace in run.lanes for note in trace.notes if note not in common]
    return "".join(f" {note}" for note in dict.fromkeys([*common, *single]))


def best_static_note(run: Run, trace: Trace) -> str:
    """The best static SL of this run for the lane's draft, next to the chosen one; "" for other lanes, and where the
    timings do not carry it.
    """
    if trace.policy != "static" or contradictions(run):
        return ""
    best = static_opt(run, trace.draft)
    if best is None:
        return ""
    sl, ratio = best
    chosen = trace.lane.rpartition(":")[2]
    draft = f" with {trace.draft}" if len(run.chains) > 1 else ""
    if str(sl) == chosen:
        return f"{chosen} is the best static SL of this run{draft} (with hindsight, simulated)."
    return f"Chosen: {chosen}. Best static SL of this run{draft}: {sl}, {times(ratio)} simulated (with hindsight)."


def badge_text(run: Run) -> str:
    """The pair, the target's size, and what to expect of it: "135M parameters, chats in English, often wrong"."""
    drafts = sorted({trace.draft for trace in run.lanes if trace.draft})
    pair = run.pair.name + (f" with {', '.join(drafts)}" if drafts and drafts != [run.pair.default_draft] else "")
    size = f"{model_size(run.pair.target.parameters)} parameters"
    return f"{pair}: " + ", ".join(part for part in (size, about_pair(run.pair.name)) if part)


def badge_place(run: Run) -> str:
    """How the text was chosen where it is not the greedy one, the machine, the number format, the date, and how many
    timings stand behind each figure.
    """
    asked, machine = run.settings, run.machine.gpu or run.machine.processor
    drawn = [] if asked.rule == "greedy" else [f"{asked.rule} at temperature {asked.temperature:g}{_cut(asked)}"]
    return " · ".join([*drawn, machine, run.pair.target.dtype, run.created[:10], how_timed(run)])


def _cut(asked: CompareRequest) -> str:
    """Which tokens were left out before drawing."""
    top_k = f", top-k {asked.top_k}" if asked.top_k else ""
    return top_k + (f", top-p {asked.top_p:g}" if asked.top_p < 1.0 else "")


def model_size(parameters: int) -> str:
    """135000000 -> "135M"."""
    n = parameters
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M" if n >= 1e6 else f"{n:,}"
