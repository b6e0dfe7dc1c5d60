"""A run as the player wants it: small, plain, ready to draw. Pure; see :func:`player_payload`.

Times are whole multiples of 1e-7 s. Token texts stand once in ``strings``; everything else points there.
Simulated lanes carry only SLs and accepted counts: the player lays them out from the target's text and the
draft's recorded wrong guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from decoding.analysis import metrics
from decoding.analysis.whatif import Replay, ending, static_sweep
from decoding.records.text import pieces
from decoding.records.trace import Chain, Run, Trace

from . import sentences
from .names import lane_caption, lane_name
from .sweeps import threshold_panels

TICKS_PER_SECOND = 10_000_000
PROMPT_CHARS = 400  # the end of the prompt, shown before each text
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
    """Texts, each once; the first is the empty text."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {"": 0}

    def add(self, texts: Sequence[str]) -> list[int]:
        return [self.index.setdefault(text, len(self.index)) for text in texts]

    def all(self) -> list[str]:
        return list(self.index)


def player_payload(run: Run, *, origin: Origin = "live", recorded: bool = False) -> dict[str, Any]:
    """Everything that ``player.load`` needs of ``run``, JSON-ready.

    Args:
        origin: what the badge says; ``recorded=True`` is short for "recorded".
    """
    strings = Strings()
    lanes = [_lane(run, trace, strings) for trace in run.lanes]
    simulations = _simulations(run, strings)
    return {
        "id": run.id,
        "badge": {"kind": "recorded" if recorded else origin, "text": sentences.badge_text(run)},
        "sentence": sentences.opening(run),
        "fact": sentences.check_fact(run) + sentences.doubt(run),
        "verdict": sentences.verdict(run),
        "lead": sentences.lead_lane(run),
        "prompt": _prompt_end(run),
        "lanes": lanes,
        "simulations": simulations,
        "thresholds": threshold_panels(run) if simulations else [],
        "time_table": _time_table(run),
        "strings": strings.all(),
    }


def _prompt_end(run: Run) -> str:
    prompt = run.settings.prompt
    return prompt if len(prompt) <= PROMPT_CHARS else "…" + prompt[-PROMPT_CHARS:]


# -- measured lanes ------------------------------------------------------------------------------------


def _lane(run: Run, trace: Trace, strings: Strings) -> dict[str, Any]:
    spread = metrics.speedup(run, trace)
    figures = [figure for figure in metrics.lane_figures(run, trace) if figure.key in COLUMN_FIGURES]
    return {
        "lane": trace.lane,
        "name": lane_name(trace.lane),
        "caption": lane_caption(trace.lane),
        "policy": trace.policy,
        "note": sentences.best_static_note(run, trace),
        "speedup": {"median": spread.median, "low": spread.low, "high": spread.high} if spread else None,
        "figures": [_figure(figure) for figure in figures],
        "starts": [iteration.start for iteration in trace.iterations],
        "fates": ["".join(LETTERS[t.fate] for t in _tokens(iteration)) for iteration in trace.iterations],
        "texts": [strings.add(texts) for texts in iteration_texts(run, trace)],
        "times": _ticks(trace),
    }


def _tokens(iteration) -> list:
    return iteration.drafted + ([iteration.emitted] if iteration.emitted else [])


def _figure(figure: metrics.Figure) -> dict[str, str]:
    return {
        "key": figure.key,
        "label": figure.label,
        "text": _times_sign(figure.text) if figure.text else "",
        "formula": figure.formula,
    }


def _times_sign(text: str) -> str:
    """ "2.40x (2.38 to 2.44)" with a real multiplication sign."""
    head, sign, tail = text.partition("x")
    return f"{head}×{tail}" if sign and head.replace(".", "").isdigit() else text


def iteration_texts(run: Run, trace: Trace) -> list[list[str]]:
    """Display text of every token that each iteration drafted or emitted, split characters joined.

    Tokens that became text show what they add to it; rejected and dropped ones what they would have added.
    """
    shown = pieces(trace.output, run.vocab)
    found = []
    for iteration in trace.iterations:
        end = iteration.start + iteration.n_accepted
        wrong = [token.id for token in iteration.drafted if token.fate != "accepted"]
        texts = shown[iteration.start : end] + after(trace.output[:end], wrong, run)
        found.append(texts + ([shown[end]] if iteration.emitted else []))
    return found


def after(context: Sequence[int], ids: Sequence[int], run: Run) -> list[str]:
    """Display texts of ``ids`` after ``context``, whose last tokens may have left a character open."""
    near = list(context[-3:])
    return pieces(near + list(ids), run.vocab)[len(near) :] if ids else []


def _ticks(trace: Trace) -> list[int]:
    """draft, check, policy, rest of each iteration of the median repeat, flat."""
    index = metrics.median_repeat(trace)
    if index is None:
        return [0] * (4 * len(trace.iterations))
    repeat = trace.repeats[index]
    rows = zip(repeat.draft_s, repeat.check_s, repeat.policy_s, repeat.rest_s)
    return [round(seconds * TICKS_PER_SECOND) for row in rows for seconds in row]


# -- simulated lanes -----------------------------------------------------------------------------------


def _simulations(run: Run, strings: Strings) -> dict[str, Any]:
    """{sources: {draft: ...}, static: ...}; {} where the run recorded no chain."""
    if not any(chain.target for chain in run.chains.values()):
        return {}
    sources = {draft: _source(run, chain, strings) for draft, chain in run.chains.items()}
    draft = _slider_draft(run)
    return {"sources": sources, "static": _static_options(run, draft)}


def _slider_draft(run: Run) -> str:
    """The draft of the first static lane, else the pair's own, else any with a chain."""
    wanted = [trace.draft for trace in run.lanes if trace.policy == "static"] + [run.pair.default_draft]
    return next((draft for draft in wanted if draft in run.chains), next(iter(run.chains)))


def _source(run: Run, chain: Chain, strings: Strings) -> dict[str, Any]:
    """What the player needs to lay out any what-if on this chain."""
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
    """Seconds per unit of cost, such that plain decoding takes as long simulated as it took on the clock.

    So a simulated strip is as long as its simulated speedup says, on the same axis as the measured ones.
    """
    plain = run.baseline
    if plain is None or not plain.output:
        return run.costs.target_s
    measured = sum(_ticks(plain)) / TICKS_PER_SECOND
    return measured / (len(plain.output) * run.costs.iteration(0, None)) or run.costs.target_s


def _static_options(run: Run, draft: str) -> dict[str, Any]:
    simulated = static_sweep(Replay(run.chains[draft]), run.costs, **ending(run))
    best = max(range(len(simulated)), key=lambda i: (simulated[i].speedup, -i))
    prefix = "" if draft == run.pair.default_draft else f"{draft}/"
    options = [
        {
            "value": i + 1,
            "lane": f"{prefix}static:{i + 1}",
            "name": f"Static {i + 1}, simulated",
            "sl": [n for _, n, _ in one.iterations],
            "accepted": [a for _, _, a in one.iterations],
            "speedup": round(one.speedup, 4),
            "decision": run.costs.decision.get("static", 0.0),
        }
        for i, one in enumerate(simulated)
    ]
    return {"draft": draft, "options": options, "best": best, "initial": best}


# -- the table of times --------------------------------------------------------------------------------


def _time_table(run: Run) -> dict[str, Any]:
    """Where the time goes, lane by lane, prefill and the remaining figures included."""
    columns = ["lane", "prefill", "decode", "end to end", "guessing", "checking", "rule", "rest", "other figures"]
    rows = []
    for trace in run.lanes:
        parts = metrics.where_time_goes(trace)
        if not parts:
            continue
        prefill = parts.pop("prefill")
        decode = sum(parts.values())
        shares = [f"{_ms(x)} ({x / decode:.0%})" if decode else _ms(x) for x in parts.values()]
        others = [_figure(f) for f in metrics.lane_figures(run, trace) if f.key not in COLUMN_FIGURES]
        rows.append([lane_name(trace.lane), _ms(prefill), _ms(decode), _ms(prefill + decode), *shares, others])
    return {
        "title": "Time in detail, prefill included",
        "columns": columns,
        "rows": rows,
        "note": "The repeat with the median decode time, which is also the one replayed. Strips and speedups count "
        "decoding only; the prefill of both models comes before it. The pre-pass that tells the oracle "
        "where guesses fail is in no time.",
    }


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
