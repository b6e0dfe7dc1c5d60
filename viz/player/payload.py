"""The player's payload of a run: small, plain and ready to draw; see :func:`player_payload`.

Times are whole multiples of 1e-7 s. Every token text is stored once in ``strings`` and referenced by index. Simulated
lanes carry only SLs and accepted counts: the player lays them out from the target's text and the draft's recorded wrong
guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from decoding.analysis import metrics
from decoding.analysis.lane_figures import Figure, lane_figures
from decoding.analysis.steadiness import contradictions
from decoding.analysis.whatif import Replay, ending, static_sweep
from decoding.records.pairs import is_asked
from decoding.records.text import pieces
from decoding.records.trace import Chain, Run, Trace

from . import sentences
from .looks import lane_look
from .names import lane_caption, lane_name
from .sweeps import threshold_panels

TICKS_PER_SECOND = 10_000_000
NEAR = 3  # tokens before a position that may have left a character incomplete
PROMPT_CHARS = 400  # length of the prompt's end that is shown before each text
READ_CHARS = 600  # of a long message, at either end, in the account of what the target read
LETTERS = {"accepted": "a", "rejected": "r", "dropped": "d", "correction": "c", "bonus": "b", "plain": "p"}
COLUMN_FIGURES = (
    "speedup",
    "tokens_per_target_pass",
    "target_passes",
    "draft_passes",
    "thrown_away",
    "first_guess_hit_rate",
)
Origin = Literal["recorded", "live", "imported"]


class Strings:
    """A table of distinct texts; the first is the empty text."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {"": 0}

    def add(self, texts: Sequence[str]) -> list[int]:
        return [self.index.setdefault(text, len(self.index)) for text in texts]

    def all(self) -> list[str]:
        return list(self.index)


def player_payload(run: Run, *, origin: Origin = "live", shows: str = "", point: str = "") -> dict[str, Any]:
    """The JSON-ready data that ``player.load`` needs for ``run``.

    Args:
        origin: what the badge says.
        shows: an example's sentence on what to notice. point: the lane of the first sentence; "" for the fastest one.
    """
    strings, doubtful = Strings(), contradictions(run)
    lanes = [_lane(run, trace, strings, doubtful) for trace in run.lanes]
    simulations = _simulations(run, strings, doubtful)
    return {
        "id": run.id,
        "badge": {
            "kind": origin,
            "text": sentences.badge_text(run),
            "place": sentences.badge_place(run),
        },
        "look": sentences.look(run),
        "sentence": sentences.opening(run, point, doubtful),
        "shows": shows,
        "fact": sentences.check_fact(run, doubtful) + sentences.doubt(run, point) + sentences.notes(run),
        "verdict": sentences.verdict(run),
        "lead": sentences.lead_lane(run, point),
        "prompt": prompt_end(run.settings.prompt, is_asked(run.settings.chat, run.pair.name)),
        "read": _read(run),
        "lanes": lanes,
        "simulations": simulations,
        "thresholds": threshold_panels(run) if simulations else [],
        "time_table": _time_table(run),
        "strings": strings.all(),
    }


def prompt_end(prompt: str, asked: bool) -> str:
    """What stands before each text: the prompt's end; after a question (``asked``) the answer begins a new line."""
    shown = prompt if len(prompt) <= PROMPT_CHARS else "…" + prompt[-PROMPT_CHARS:]
    return f"{shown}\n" if asked else shown


def _read(run: Run) -> list[list]:
    """[text, whether it is a special token] of what the target read, if that is more than the prompt; else [].

    Older runs do not hold the text of their prompt's tokens.
    """
    known = [run.vocab.get(token) for token in run.prompt_ids]
    if None in known or not any(token.special for token in known):
        return []
    parts: list[list] = []
    for text, token in zip(pieces(run.prompt_ids, run.vocab, special=True), known):
        if parts and not token.special and not parts[-1][1]:
            parts[-1][0] += text
        else:
            parts.append([text, token.special])
    return [[_shortened(text), special] for text, special in parts]


def _shortened(text: str) -> str:
    return text if len(text) <= 2 * READ_CHARS else f"{text[:READ_CHARS]} … {text[-READ_CHARS:]}"


# -- measured lanes ------------------------------------------------------------------------------------


def _lane(run: Run, trace: Trace, strings: Strings, doubtful: list[str]) -> dict[str, Any]:
    figures = [figure for figure in lane_figures(run, trace) if figure.key in COLUMN_FIGURES]
    return {
        "lane": trace.lane,
        "name": lane_name(trace.lane),
        "caption": lane_caption(trace.lane),
        "policy": trace.policy,
        "ends": trace.finish == "eos",
        "look": lane_look(trace.lane)._asdict(),
        "note": "" if doubtful else sentences.best_static_note(run, trace),
        "speedup": _speedup(run, trace),
        "figures": [_speedup_figure(run, trace, f) if f.key == "speedup" else _figure(f) for f in figures],
        "starts": [iteration.start for iteration in trace.iterations],
        "fates": ["".join(LETTERS[t.fate] for t in _tokens(iteration)) for iteration in trace.iterations],
        "texts": [strings.add(texts) for texts in iteration_texts(run, trace)],
        "times": _ticks(run, trace),
    }


def _speedup(run: Run, trace: Trace) -> dict[str, float] | None:
    """The speedup of the strip and of all repeats; None without an autoregressive lane."""
    spread, replayed = metrics.speedup(run, trace), metrics.replayed_speedup(run, trace)
    if spread is None or replayed is None:
        return None
    return {"replayed": replayed, "median": spread.median, "low": spread.low, "high": spread.high}


def _tokens(iteration) -> list:
    return iteration.drafted + ([iteration.emitted] if iteration.emitted else [])


def _figure(figure: Figure) -> dict[str, str]:
    return {
        "key": figure.key,
        "label": figure.label,
        "text": _times_sign(figure.text) if figure.text else "",
        "formula": figure.formula,
    }


def _speedup_figure(run: Run, trace: Trace, figure: Figure) -> dict[str, str]:
    """The median over the repeats, labelled as such: the strip shows a single repeat."""
    shown = _figure(figure)
    if len(trace.repeats) > 1:
        shown["text"] = f"median {shown['text']}"
        replayed = metrics.replayed_speedup(run, trace)
        shown["formula"] += f"; the strip shows one of {len(trace.repeats)} repeats: {sentences.times(replayed or 0.0)}"
    return shown


def _times_sign(text: str) -> str:
    """ "2.40x (2.38 to 2.44)" with a real multiplication sign."""
    head, sign, tail = text.partition("x")
    return f"{head}×{tail}" if sign and head.replace(".", "").isdigit() else text


def iteration_texts(run: Run, trace: Trace) -> list[list[str]]:
    """Display text of every token that each iteration drafted or emitted, with split characters joined.

    Accepted tokens show what they add to the text; rejected and dropped ones what they would have added.
    """
    shown = pieces(trace.output, run.vocab)
    found = []
    for iteration in trace.iterations:
        end = iteration.start + iteration.n_accepted
        wrong = [token.id for token in iteration.drafted if token.fate != "accepted"]
        texts = shown[iteration.start : end] + after(trace.output[max(0, end - NEAR) : end], wrong, run)
        found.append(texts + ([shown[end]] if iteration.emitted else []))
    return found


def after(context: Sequence[int], ids: Sequence[int], run: Run) -> list[str]:
    """Display texts of ``ids`` after ``context``, whose last tokens may have left a character incomplete."""
    near = list(context[-NEAR:])
    return pieces(near + list(ids), run.vocab, special=True)[len(near) :] if ids else []


def _ticks(run: Run, trace: Trace) -> list[int]:
    """draft, check, policy, rest of each iteration of the replayed repeat, flat."""
    index = metrics.replayed_repeat(run)
    if index is None or not trace.repeats:
        return [0] * (4 * len(trace.iterations))
    repeat = trace.repeats[index]
    rows = zip(repeat.draft_s, repeat.check_s, repeat.policy_s, repeat.rest_s)
    return [round(seconds * TICKS_PER_SECOND) for row in rows for seconds in row]


# -- simulated lanes -----------------------------------------------------------------------------------


def _simulations(run: Run, strings: Strings, doubtful: list[str]) -> dict[str, Any]:
    """{sources: {draft: ...}, static: {draft: ...}, draft, doubtful}; {} if the run recorded no chain."""
    chains = {draft: chain for draft, chain in run.chains.items() if chain.target}
    if not chains:
        return {}
    return {
        "sources": {draft: _source(run, chain, strings) for draft, chain in chains.items()},
        "static": {draft: _static_options(run, draft) for draft in chains},
        "draft": _slider_draft(run, chains),
        "doubtful": bool(doubtful),
    }


def _slider_draft(run: Run, chains: dict[str, Chain]) -> str:
    """The draft of the first static lane, else the pair's own, else any with a chain."""
    wanted = [trace.draft for trace in run.lanes if trace.policy == "static"] + [run.pair.default_draft]
    return next((draft for draft in wanted if draft in chains), next(iter(chains)))


def _source(run: Run, chain: Chain, strings: Strings) -> dict[str, Any]:
    """The data with which the player lays out any what-if on this chain."""
    tails = {}
    for at, tail in chain.tails.items():
        wrong = [chain.along.choice[at], *tail.choice]
        ids = [token for token in wrong if token is not None]
        tails[at] = strings.add(after(chain.target[:at], ids, run))
    return {
        "target": strings.add(pieces(chain.target, run.vocab)),
        "tails": tails,
        "costs": {
            "unit_s": _unit_seconds(run),
            "c": run.costs.c[chain.draft],
            "v": run.costs.v,
            "o": run.costs.o,
            "first": run.costs.first.get(chain.draft, 0.0),
        },
    }


def _unit_seconds(run: Run) -> float:
    """Seconds per unit of cost, such that simulated plain decoding takes its measured time.

    A simulated strip then matches its simulated speedup on the axis of the measured ones.
    """
    plain = run.baseline
    if plain is None or not plain.output:
        return run.costs.target_s
    measured = sum(_ticks(run, plain)) / TICKS_PER_SECOND
    return measured / (len(plain.output) * run.costs.iteration(0, None)) or run.costs.target_s


def _static_options(run: Run, draft: str) -> dict[str, Any]:
    simulated = static_sweep(Replay(run.chains[draft]), run.costs, **ending(run))
    best = max(range(len(simulated)), key=lambda i: (simulated[i].speedup, -i))
    prefix = "" if draft == run.pair.default_draft else f"{draft}/"
    options = [
        {
            "value": i + 1,
            "lane": f"{prefix}static:{i + 1}",
            "name": f"{lane_name(f'{prefix}static:{i + 1}')}, simulated",
            "measured": _measured(run, draft, i + 1),
            "sl": [n for _, n, _ in one.iterations],
            "accepted": [a for _, _, a in one.iterations],
            "speedup": round(one.speedup, 4),
            "decision": run.costs.decision.get("static", 0.0),
        }
        for i, one in enumerate(simulated)
    ]
    return {"options": options, "best": best, "initial": best}


def _measured(run: Run, draft: str, sl: int) -> str:
    """The speedup of the lane that ran with this SL and draft, as on its card; "" if none did."""
    ran = [t for t in run.lanes if t.policy == "static" and t.draft == draft and t.lane.endswith(f":{sl}")]
    spread = metrics.speedup(run, ran[0]) if ran else None
    return f"median {sentences.times(spread.median)} ({spread.low:.2f} to {spread.high:.2f})" if spread else ""


# -- the table of times --------------------------------------------------------------------------------


def _time_table(run: Run) -> dict[str, Any]:
    """Each lane's time by phase, including prefill, and the remaining figures."""
    columns = ["lane", "prefill", "decode", "end to end", "guessing", "checking", "policy", "rest", "other figures"]
    rows = []
    for trace in run.lanes:
        parts = metrics.where_time_goes(run, trace)
        if not parts:
            continue
        prefill = parts.pop("prefill")
        decode = sum(parts.values())
        shares = [f"{_ms(x)} ({x / decode:.0%})" if decode else _ms(x) for x in parts.values()]
        others = [_figure(f) for f in lane_figures(run, trace) if f.key not in COLUMN_FIGURES]
        rows.append([lane_name(trace.lane), _ms(prefill), _ms(decode), _ms(prefill + decode), *shares, others])
    return {
        "title": "Time in detail, prefill included",
        "columns": columns,
        "rows": rows,
        "note": "The repeat that is replayed, the same one for all lanes. Strips and speedups count decoding only; the "
        "prefill of target and draft comes before it. The oracle's pre-pass is not part of any "
        "lane's time.",
    }


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
