"""The figures of a lane as they are shown: label, text, and the formula with this lane's numbers."""

from __future__ import annotations

from dataclasses import dataclass

from ..records.generate import is_recorded
from ..records.trace import Chain, Run, Trace
from . import metrics
from .counts import counts
from .metrics import Spread
from .whatif import guesses_at_once


@dataclass(frozen=True, slots=True)
class LaneFigure:
    """One figure of a lane as it is shown: its value, its text, and the formula with this lane's numbers."""

    key: str
    label: str
    value: float | None
    text: str
    formula: str


def lane_figures(run: Run, trace: Trace) -> list[LaneFigure]:
    """All figures of a lane, in display order; those that do not apply are left out."""
    end_to_end, loop = metrics.end_to_end_speedup(run, trace), metrics.loop_share(run, trace)
    figures = [
        _speedup_figure("speedup", "speedup", metrics.speedup(run, trace), "decode time, without prefill"),
        _speedup_figure("end_to_end", "end to end", end_to_end, "prefill and decode time"),
        _predicted_figure(run, trace),
        _latency_figure(trace),
        *_pass_figures(trace),
        *(_draft_figures(run, trace) if trace.draft else []),
        _figure("loop_share", "loop's own share", loop, ".1%", "(policy + rest) / decode time, in the replayed repeat"),
    ]
    return [figure for figure in figures if figure is not None]


def _figure(key: str, label: str, value: float | None, show: str, formula: str) -> LaneFigure | None:
    """A figure whose text is ``value`` in the format ``show``; None without a value."""
    return None if value is None else LaneFigure(key, label, value, f"{value:{show}}", formula)


def _speedup_figure(key: str, label: str, spread: Spread | None, what: str) -> LaneFigure | None:
    if spread is None:
        return None
    ranged = f" ({spread.low:.2f} to {spread.high:.2f})" if spread.high - spread.low >= 0.005 else ""
    formula = f"autoregressive {what} / this lane's, same repeat; median (range) over repeats"
    return LaneFigure(key, label, spread.median, f"{spread.median:.2f}×{ranged}", formula)


def _predicted_figure(run: Run, trace: Trace) -> LaneFigure | None:
    predicted = metrics.predicted_speedup(run, trace)
    if predicted is None or is_recorded(run):  # the curves of a recorded run are drawn through the lanes themselves
        return None
    cost = metrics.predicted_cost(run.costs, trace)
    formula = (
        "tokens (v(1) + o) / sum of first + d c + n decision + v(n+1) + o over iterations"
        f" = {len(trace.output)} × {run.costs.iteration(0, None):.3f} / {cost:.1f}, all as measured at the start;"
        " n: guesses of an iteration, d: draft passes behind them, first: what the first one costs beyond c"
    )
    return LaneFigure("predicted", "predicted speedup", predicted, f"{predicted:.2f}×", formula)


def _latency_figure(trace: Trace) -> LaneFigure | None:
    seconds = metrics.seconds_per_token(trace)
    if seconds is None:
        return None
    formula = f"median decode time over repeats / {len(trace.output)} tokens = {1 / seconds:.0f} tokens/s"
    return LaneFigure("latency", "time per token", seconds, f"{seconds * 1e3:.2f} ms", formula)


def _pass_figures(trace: Trace) -> list[LaneFigure | None]:
    found = counts(trace)
    n, tokens = found.target_passes, found.tokens
    passes = _figure("target_passes", "target passes", n, "", f"iterations after the prefill, for {tokens} tokens")
    if not n or not trace.draft:
        return [passes]
    formula = (
        f"1 + accepted / iterations = 1 + {found.accepted} / {n}; "
        f"tokens / iterations with the truncated last one as it is: {found.block_efficiency:.2f}"
    )
    per_pass = found.tokens_per_target_pass
    return [_figure("tokens_per_target_pass", "tokens per target pass", per_pass, ".2f", formula), passes]


def _draft_figures(run: Run, trace: Trace) -> list[LaneFigure | None]:
    found = counts(trace)
    n, drafted, draft_passes, accepted, tokens = found
    lost = found.thrown_away
    firsts = metrics.first_guesses(trace)
    hits = sum(token.fate == "accepted" for token in firsts)
    hit_rate = metrics.first_guess_hit_rate(trace)
    held = f"iterations whose first draft held / iterations that drafted = {hits} / {len(firsts)}"
    acceptance = f"accepted / drafted = {accepted} / {drafted}; it measures the policy as much as the draft"
    places = "one for each drafted token, or for each place of a tree"
    if guesses_at_once(run.costs, trace.draft or ""):
        draft_passes = sum(it.n_drafted > 0 for it in trace.iterations)
        places = "one for each iteration with guesses: this draft makes them all at once"
    discarding, verifying = f"thrown away / tokens = {lost} / {tokens}", f"target passes / tokens = {n} / {tokens}"
    return [
        _figure("draft_passes", "draft passes", draft_passes, "", places),
        _thrown_away_figure(trace, lost, drafted),
        _figure("first_guess_hit_rate", "first-guess hit rate", hit_rate, ".0%", held),
        _figure("acceptance_rate", "acceptance rate", found.acceptance_rate, ".0%", acceptance),
        _match_figure(run.chains.get(trace.draft or "")),
        _figure("discard_rate", "discard rate", found.discard_rate, ".2f", discarding),
        _figure("verification_rate", "verification rate", found.verification_rate, ".2f", verifying),
    ]


def _thrown_away_figure(trace: Trace, lost: int, drafted: int) -> LaneFigure | None:
    if not drafted:
        return None
    rejected = sum(token.fate == "rejected" for it in trace.iterations for token in it.drafted)
    formula = f"rejected + dropped = {rejected} + {lost - rejected}, of {drafted} drafted"
    return LaneFigure("thrown_away", "thrown away", lost, f"{lost} ({lost / drafted:.0%})", formula)


def _match_figure(chain: Chain | None) -> LaneFigure | None:
    rate = metrics.match_rate(chain) if chain else None
    if chain is None or rate is None:
        return None
    n = len(chain.target)
    formula = (
        "positions where the draft's first choice on the final text is the target's token"
        f" = {round(rate * n)} / {n}; the same for every policy"
    )
    return _figure("match_rate", "match rate of the draft", rate, ".0%", formula)
