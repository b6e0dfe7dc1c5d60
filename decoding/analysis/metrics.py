"""The figures of a run, as pure functions over run files; each docstring has its formula. Those that follow from counts
are in :mod:`.counts`.

``iterations`` counts target passes after the prefill. The last iteration may be *truncated*: the token limit reduces
its SL, and if the text ends within its accepted tokens it emits no token of the target's own. It counts unchanged
unless a docstring says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ..lookahead.base import SL_CAP
from ..lookahead.static import Static
from ..records.trace import Chain, Costs, Run, Token, Trace
from .run_costs import run_costs
from .whatif import Replay


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the smallest and the largest value over the repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Spread | None:
        return cls(median(values), min(values), max(values)) if values else None


# -- the first guesses of one lane ---------------------------------------------------------------------


def first_guesses(trace: Trace) -> list[Token]:
    """The first draft of each iteration that drafted a chain."""
    return [it.drafted[0] for it in trace.iterations if it.drafted and it.parents is None]


def first_guess_hit_rate(trace: Trace) -> float | None:
    """How often the first draft of an iteration holds: ``accepted firsts / iterations with SL >= 1``.

    An iteration whose truncation left SL 0 does not count. None if nothing was drafted, and for trees, which have
    several first guesses.
    """
    firsts = first_guesses(trace)
    return sum(token.fate == "accepted" for token in firsts) / len(firsts) if firsts else None


# -- the draft, under any policy -----------------------------------------------------------------------


def match_rate(chain: Chain) -> float | None:
    """Share of output positions where the draft's first choice on the target's text is the target's token.

    It depends on the draft and the text alone, not on the iterations: where a guess depends on the start of its
    iteration, the first guesses count.
    """
    if not chain.target:
        return None
    return sum(guess == token for guess, token in zip(chain.along.choice, chain.target)) / len(chain.target)


def oracle_sls(chain: Chain) -> list[int]:
    """The oracle's accepted tokens per iteration: runs of guesses that hold, each followed by one correction.

    The last entry is cut off by the end of the text.
    """
    found, start = [], 0
    while start < len(chain.target):
        held = chain.holds(start)
        found.append(held)
        start += held + 1
    return found


# -- the clock -----------------------------------------------------------------------------------------


def seconds_per_token(trace: Trace) -> float | None:
    """Latency per token: median decode time over the repeats, without prefill / tokens of text."""
    seconds = [repeat.decode_s for repeat in trace.repeats]
    return median(seconds) / len(trace.output) if seconds and trace.output else None


def replayed_repeat(run: Run) -> int | None:
    """Index of the repeat that the page replays, the same for all lanes: the one whose speedups are nearest to their
    medians.

    Nearest: the smallest sum over the lanes of ``|log(speedup / median speedup)|``; of decode times if no
    autoregressive lane ran. None if nothing was timed.
    """
    timed = [trace for trace in run.lanes if trace.repeats]
    count = min((len(trace.repeats) for trace in timed), default=0)
    if not count:
        return None
    known = [ratios for trace in timed if len(ratios := speedups(run, trace)) >= count]
    known = known or [[repeat.decode_s for repeat in trace.repeats] for trace in timed]
    return min(range(count), key=lambda index: sum(_off(values[index], median(values)) for values in known))


def _off(value: float, middle: float) -> float:
    return abs(math.log(value / middle)) if value > 0 and middle > 0 else 0.0


def replayed_speedup(run: Run, trace: Trace) -> float | None:
    """The speedup of the lane in the repeat whose bars the page draws; the lane's card names it beside the median."""
    index, ratios = replayed_repeat(run), speedups(run, trace)
    return ratios[index] if index is not None and index < len(ratios) else None


def speedups(run: Run, trace: Trace) -> list[float]:
    """Per repeat: decode time of the autoregressive lane / of this lane, in the same repeat.

    [] without an autoregressive lane. Prefill is excluded; see :func:`end_to_end_speedup`. Lanes with texts of
    different lengths are compared per token.
    """
    return _ratios(run, trace, lambda repeat: repeat.decode_s)


def speedup(run: Run, trace: Trace) -> Spread | None:
    """Median, lowest and highest of :func:`speedups`."""
    return Spread.over(speedups(run, trace))


def end_to_end_speedup(run: Run, trace: Trace) -> Spread | None:
    """:func:`speedup` with the prefill of both models in both times: a user's total wait."""
    return Spread.over(_ratios(run, trace, lambda repeat: repeat.prefill_s + repeat.decode_s))


def _ratios(run: Run, trace: Trace, seconds) -> list[float]:
    plain = run.baseline
    if plain is None or not plain.output or not trace.output:
        return []
    per_token = len(trace.output) / len(plain.output)
    pairs = [(seconds(theirs), seconds(ours)) for theirs, ours in zip(plain.repeats, trace.repeats)]
    return [theirs / ours * per_token for theirs, ours in pairs if ours > 0]


def where_time_goes(run: Run, trace: Trace) -> dict[str, float]:
    """Seconds of the replayed repeat by kind: prefill, draft, check, policy, rest. {} without repeats."""
    index = replayed_repeat(run)
    if index is None or not trace.repeats:
        return {}
    repeat = trace.repeats[index]
    return {
        "prefill": repeat.prefill_s,
        "draft": sum(repeat.draft_s),
        "check": sum(repeat.verify_s),
        "policy": sum(repeat.policy_s),
        "rest": sum(repeat.rest_s),
    }


def loop_share(run: Run, trace: Trace) -> float | None:
    """The loop's own share: ``(policy + rest) / decode time`` of the replayed repeat."""
    parts = where_time_goes(run, trace)
    total = sum(parts.values()) - parts.get("prefill", 0.0)
    return (parts["policy"] + parts["rest"]) / total if total > 0 else None


# -- prediction ----------------------------------------------------------------------------------------


def predicted_speedup(run: Run, trace: Trace) -> float | None:
    """The speedup that the frozen cost curves predict for this lane's iterations.

    ``tokens (v(1) + o) / sum over iterations of (first + d c + n decision + v(n + 1) + o)``, the truncated last
    iteration with its own SL n and its own d draft passes.
    """
    cost = predicted_cost(run.costs, trace)
    return len(trace.output) * run.costs.iteration(0, None) / cost if cost > 0 and trace.output else None


def predicted_cost(costs: Costs, trace: Trace) -> float:
    """Sum over the iterations of ``first + d c + n decision + v(n + 1) + o``, in units of ``target_s``."""
    return sum(costs.iteration(it.n_drafted, trace.draft, trace.policy, it.n_steps) for it in trace.iterations)


def static_opt(run: Run, draft: str | None = None) -> tuple[int, float] | None:
    """The best static SL of this run and its simulated speedup: the largest over SL 1 to 20.

    The truncated last iteration is simulated too. None if the run has no chain of the draft. For a single run it is
    chosen in hindsight; evaluations choose it on the validation split.
    """
    speedups = static_speedups(run, draft or run.pair.default_draft)
    return max(speedups.items(), key=lambda one: one[1]) if speedups else None


def static_speedups(run: Run, draft: str) -> dict[int, float]:
    """Simulated speedup of static:1..20 with ``draft`` on this run's text, at this run's own costs; {} without its
    chain.
    """
    chain = run.chains.get(draft)
    if chain is None or not chain.target:
        return {}
    replay, costs = Replay.of_run(run, draft), run_costs(run)
    return {sl: replay.simulate(costs, Static(sl)).speedup for sl in range(1, SL_CAP + 1)}
