"""The sentences of the race, computed from the run on screen; none is canned."""

from __future__ import annotations

from decoding.analysis.metrics import speedup, speedups, static_opt
from decoding.records.trace import Run, Trace

from .names import lane_name

SHORT = 8  # tokens: a text that ends so soon shows nothing of speculation
WAVERING = 2.0  # highest over lowest speedup of the repeats, beyond which their median says little
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


def lead_lane(run: Run) -> int:
    """Index of the lane that the first sentence is about: the fastest that can be used (no oracle)."""
    usable = [i for i, trace in enumerate(run.lanes) if trace.policy not in ("autoregressive", "oracle")]
    candidates = usable or list(range(len(run.lanes)))
    return max(candidates, key=lambda i: _median_speedup(run, run.lanes[i]), default=0)


def _median_speedup(run: Run, trace: Trace) -> float:
    found = speedup(run, trace)
    return found.median if found else 0.0


def opening(run: Run) -> str:
    """ "Here: the same 88 tokens, 2.4× sooner (DISCO)." Honest where it is later, or cannot be told."""
    if not run.lanes:
        return "This run holds no lane."
    trace = run.lanes[lead_lane(run)]
    ratio = _median_speedup(run, trace)
    n, name = len(trace.output), lane_name(trace.lane)
    if run.baseline is None:
        return f"Here: {_count(n, 'token')}; no plain lane ran, so there is nothing to be sooner than."
    if trace is run.baseline or not ratio:
        return f"Here: {_count(n, 'token')} by the big model alone; add a lane to race it."
    same = {True: "the same ", False: "", None: ""}[trace.verdict.same]
    return f"Here: {same}{_count(n, 'token')}, {_how_much_sooner(ratio)} ({name}).{_ended_early(trace)}"


def _ended_early(trace: Trace) -> str:
    """What to do about a text that the big model ended at once, as many do after a prompt's last line break."""
    if trace.finish != "eos" or len(trace.output) > SHORT:
        return ""
    return " The big model ended the text there: it goes on after a prompt that stops within a line."


def _how_much_sooner(ratio: float) -> str:
    if ratio >= 1.05:
        return f"{ratio:.1f}× sooner"
    if ratio > 1 / 1.05:
        return "no sooner and no later"
    return f"{1 / ratio:.1f}× later"


def check_fact(run: Run) -> str:
    """The one measured fact without which nothing makes sense."""
    return (
        f"Checking 6 tokens costs the big model {run.costs.check(6):.2f} times what producing one costs; "
        f"a guess by the small one {_draft_cost(run)}."
    )


def _draft_cost(run: Run) -> str:
    draft = run.lanes[lead_lane(run)].draft if run.lanes else None
    name = draft or run.pair.default_draft
    c, first = run.costs.c.get(name), run.costs.first.get(name, 0.0)
    if c is None:
        return "less"
    return f"{c:.2f}" + (f" to {c + first:.2f}" if first >= 0.005 else "")  # the first after a check


def doubt(run: Run) -> str:
    """A warning where the repeats of the lane that the first sentence is about are far apart; else ""."""
    ratios = sorted(speedups(run, run.lanes[lead_lane(run)])) if run.lanes else []
    inner = ratios[1:-1] if len(ratios) >= 5 else ratios  # of many repeats one may be off on each side
    if not inner or inner[-1] <= WAVERING * inner[0]:
        return ""
    return (
        f" Its timings waver ({ratios[0]:.2f}× to {ratios[-1]:.2f}× over the repeats), as beside other work: "
        "run it again when the machine is quiet."
    )


def best_static_note(run: Run, trace: Trace) -> str:
    """The best static SL of this run, named beside the chosen one; "" for other lanes."""
    if trace.policy != "static":
        return ""
    best = static_opt(run, trace.draft)
    if best is None:
        return ""
    sl, ratio = best
    chosen = trace.lane.rpartition(":")[2]
    if str(sl) == chosen:
        return f"{chosen} is the best static SL of this run (with hindsight, simulated)."
    return f"Chosen: {chosen}. Best static SL of this run: {sl}, {ratio:.2f}× simulated (with hindsight)."


def verdict(run: Run) -> dict[str, str]:
    """One verdict for all lanes: {kind: "same" | "differs" | "free", text}."""
    others = [trace for trace in run.lanes if trace is not run.baseline]
    differing = [trace for trace in others if trace.verdict.same is False]
    if differing:
        return {"kind": "differs", "text": " ".join(_difference(run, trace) for trace in differing)}
    if any(trace.verdict.same is None for trace in others):
        return {
            "kind": "free",
            "text": "Texts may differ: plain speculative sampling keeps the distribution, not the draw.",
        }
    if len(run.lanes) < 2:
        return {"kind": "free", "text": "One lane: no other text to compare with."}
    return {"kind": "same", "text": f"Same text in all {_word(len(run.lanes))} lanes."}


def _difference(run: Run, trace: Trace) -> str:
    told = trace.verdict
    sentence = f"{lane_name(trace.lane)} differs from output position {told.first_difference} on"
    if told.gap is None:
        return sentence + "."
    tie = ", a near tie" if told.near_tie else ""
    return f"{sentence}: there the big model's two best tokens are {told.gap:.2g} logits apart in {_dtype(run)}{tie}."


def _dtype(run: Run) -> str:
    return run.pair.target.dtype


def badge_text(run: Run) -> str:
    """The pair, the machine, the dtype and the date."""
    device = run.machine.gpu or run.machine.processor
    drafts = sorted({trace.draft for trace in run.lanes if trace.draft})
    pair = run.pair.name + (f" with {', '.join(drafts)}" if drafts and drafts != [run.pair.default_draft] else "")
    return " · ".join([pair, device, _dtype(run), run.created[:10]])


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def _word(n: int) -> str:
    return _NUMBERS[n] if n < len(_NUMBERS) else str(n)
