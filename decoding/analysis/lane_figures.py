"""The figures of a lane as they are shown: label, text, and the formula with this lane's numbers."""

from __future__ import annotations

from dataclasses import dataclass

from ..records.trace import Chain, Run, Trace
from .metrics import (
    Spread,
    acceptance_rate,
    accepted,
    block_efficiency,
    discard_rate,
    draft_passes,
    drafted,
    end_to_end_speedup,
    first_guess_hit_rate,
    first_guesses,
    loop_share,
    match_rate,
    predicted_cost,
    predicted_speedup,
    seconds_per_token,
    speedup,
    target_passes,
    thrown_away,
    tokens_per_target_pass,
    verification_rate,
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a lane as it is shown: its value, its text, and the formula with this lane's numbers."""

    key: str
    label: str
    value: float | None
    text: str
    formula: str


def lane_figures(run: Run, trace: Trace) -> list[Figure]:
    """All figures of a lane, in display order; those that do not apply are left out."""
    figures = [
        _speedup_figure("speedup", "speedup", speedup(run, trace), "decode time, without prefill"),
        _speedup_figure("end_to_end", "end to end", end_to_end_speedup(run, trace), "prefill and decode time"),
        _predicted_figure(run, trace),
        _per_token_figure(trace),
        *_pass_figures(trace),
        *(_draft_figures(run, trace) if trace.draft else []),
        _loop_figure(run, trace),
    ]
    return [figure for figure in figures if figure is not None]


def _speedup_figure(key: str, label: str, spread: Spread | None, what: str) -> Figure | None:
    if spread is None:
        return None
    ranged = f" ({spread.low:.2f} to {spread.high:.2f})" if spread.high - spread.low >= 0.005 else ""
    formula = f"autoregressive {what} / this lane's, same repeat; median (range) over repeats"
    return Figure(key, label, spread.median, f"{spread.median:.2f}×{ranged}", formula)


def _predicted_figure(run: Run, trace: Trace) -> Figure | None:
    predicted = predicted_speedup(run, trace)
    if predicted is None:
        return None
    cost = predicted_cost(run.costs, trace)
    formula = (
        "tokens (v(1) + o) / sum of first + n (c + decision) + v(n+1) + o over iterations"
        f" = {len(trace.output)} x {run.costs.iteration(0, None):.3f} / {cost:.1f}, all as measured at the start;"
        " first: what the first guess of an iteration costs beyond c"
    )
    return Figure("predicted", "predicted speedup", predicted, f"{predicted:.2f}×", formula)


def _per_token_figure(trace: Trace) -> Figure | None:
    seconds = seconds_per_token(trace)
    if seconds is None:
        return None
    formula = f"median decode time over repeats / {len(trace.output)} tokens = {1 / seconds:.0f} tokens/s"
    return Figure("latency", "time per token", seconds, f"{seconds * 1e3:.2f} ms", formula)


def _pass_figures(trace: Trace) -> list[Figure]:
    n, tokens = target_passes(trace), len(trace.output)
    passes = Figure("target_passes", "target passes", n, f"{n}", f"iterations after the prefill, for {tokens} tokens")
    if not n or not trace.draft:
        return [passes]
    per_pass, efficiency = tokens_per_target_pass(trace), block_efficiency(trace)
    formula = (
        f"1 + accepted / iterations = 1 + {accepted(trace)} / {n}; "
        f"tokens / iterations with the truncated last one as it is: {efficiency:.2f}"
    )
    return [Figure("tokens_per_target_pass", "tokens per target pass", per_pass, f"{per_pass:.2f}", formula), passes]


def _draft_figures(run: Run, trace: Trace) -> list[Figure | None]:
    n_drafted, lost, n, tokens = drafted(trace), thrown_away(trace), target_passes(trace), len(trace.output)
    firsts = first_guesses(trace)
    first_hits = sum(token.fate == "accepted" for token in firsts)
    rejected = sum(token.fate == "rejected" for it in trace.iterations for token in it.drafted)
    chain = run.chains.get(trace.draft or "")
    return [
        Figure(
            "draft_passes",
            "draft passes",
            passes := draft_passes(trace),
            f"{passes}",
            "one for each drafted token, or for each place of a tree",
        ),
        _thrown_away_figure(lost, n_drafted, rejected),
        _share(
            "first_guess_hit_rate",
            "first-guess hit rate",
            first_guess_hit_rate(trace),
            f"iterations whose first draft held / iterations that drafted = {first_hits} / {len(firsts)}",
        ),
        _share(
            "acceptance_rate",
            "acceptance rate",
            acceptance_rate(trace),
            f"accepted / drafted = {n_drafted - lost} / {n_drafted}; it measures the policy as much as the draft",
        ),
        _match_figure(chain) if chain else None,
        _per_token("discard_rate", "discard rate", discard_rate(trace), f"thrown away / tokens = {lost} / {tokens}"),
        _per_token(
            "verification_rate",
            "verification rate",
            verification_rate(trace),
            f"target passes / tokens = {n} / {tokens}",
        ),
    ]


def _thrown_away_figure(lost: int, drafted: int, rejected: int) -> Figure | None:
    if not drafted:
        return None
    formula = f"rejected + dropped = {rejected} + {lost - rejected}, of {drafted} drafted"
    return Figure("thrown_away", "thrown away", lost, f"{lost} ({lost / drafted:.0%})", formula)


def _share(key: str, label: str, share: float | None, formula: str) -> Figure | None:
    return None if share is None else Figure(key, label, share, f"{share:.0%}", formula)


def _per_token(key: str, label: str, rate: float | None, formula: str) -> Figure | None:
    return None if rate is None else Figure(key, label, rate, f"{rate:.2f}", formula)


def _match_figure(chain: Chain) -> Figure | None:
    rate = match_rate(chain)
    if rate is None:
        return None
    n = len(chain.target)
    formula = (
        f"positions where the draft's first choice on the final text is the target's token"
        f" = {round(rate * n)} / {n}; the same for every policy"
    )
    return _share("match_rate", "match rate of the draft", rate, formula)


def _loop_figure(run: Run, trace: Trace) -> Figure | None:
    share = loop_share(run, trace)
    if share is None:
        return None
    formula = "(policy + rest) / decode time, in the replayed repeat"
    return Figure("loop_share", "loop's own share", share, f"{share:.1%}", formula)
