"""The figures of a pair's drafts as rows of the long table: every draft with every static SL and its best policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis.bootstrap import Bootstrap
from ..comparison.prepare import abilities_of, model_info
from ..lookahead.static import expected_tokens
from ..records.suites import Prompt
from ..records.trace import Costs
from .choices import best_of, draft_candidates, static_lanes
from .collect import Collector
from .figures import clock_table, match_rates
from .results import ALL, PLAIN, Draft, Figure
from .samples import Replayed, groups, replay_lane

if TYPE_CHECKING:
    import pandas as pd

CLOCKED_SLS = (1, 2, 3, 5, 8, 12, 20)


def evaluate_draft(
    collector: Collector,
    name: str,
    validation: Sequence[Prompt],
    test: Sequence[Prompt],
    readings: Sequence[dict[str, Any]],
) -> tuple[Draft, list[Figure]]:
    """The draft ``name``, with the SL and the policy that ``validation`` chooses, and its figures on ``test``."""
    costs, heads = collector.costs, collector.heads(name)
    tuning, samples = collector.samples(validation, name), collector.samples(test, name)
    best_sl = 1 + static_lanes(name).index(best_of(static_lanes(name), tuning, costs))
    certain = abilities_of(collector.pair, name).certain
    best_lane = best_of(draft_candidates(name, heads, certain), tuning, costs, heads)
    info = model_info(collector.pair, name)
    draft = Draft(
        name=name,
        source=info.source,
        parameters=info.parameters,
        layers=info.layers,
        hidden_size=info.hidden_size,
        dtype=info.dtype,
        fingerprint=info.fingerprint,
        best_sl=best_sl,
        best_lane=best_lane,
    )
    sweep = [replay_lane(lane, samples, costs) for lane in static_lanes(name)]
    best = replay_lane(best_lane, samples, costs, heads)
    found = [
        Figure(name, "", ALL, "c", costs.draft_step[name]),
        Figure(name, "", ALL, "break_even_c", break_even_c(sweep), n=len(samples)),
        *match_rates(samples),
        *simulated_figures(sweep),
        *clocked_figures(sweep, clock_table(readings, samples)),
        *best_figures(best),
    ]
    return draft, list(dict.fromkeys(found))  # the best policy may be a static one


def simulated_figures(sweep: Sequence[Replayed]) -> Iterator[Figure]:
    """``speedup`` and ``predicted_speedup`` of SL 1, 2, ...

    The prediction is the throughput model's, if every guess holds independently with the match rate: ``(1 - m^(n+1)) /
    (1 - m) (v(1) + o) / (first + n c + v(n+1) + o)``.
    """
    draft, samples, costs = sweep[0].draft, sweep[0].samples, sweep[0].costs
    match = next(one.value for one in match_rates(samples) if one.suite == ALL)
    for sl, replayed in enumerate(sweep, start=1):
        predicted = expected_tokens(match, sl) * costs.iteration(0, None) / costs.iteration(sl, draft)
        yield replayed.speedup_figure()
        yield Figure(draft, replayed.policy, ALL, "predicted_speedup", predicted)


def best_figures(best: Replayed) -> Iterator[Figure]:
    """``speedup`` of the draft's best policy, by suite and over all, and its ``p95_token_s``: the 95th percentile over
    prompts of the time per token.
    """
    for suite, indices in groups(best.samples).items():
        yield best.pick(indices).speedup_figure(suite)
    p95 = float(np.percentile(best.cost / best.tokens, 95) * best.costs.target_s)
    yield Figure(best.draft, best.policy, ALL, "p95_token_s", p95, n=len(best.samples))


def clocked_figures(sweep: Sequence[Replayed], clock: pd.DataFrame) -> Iterator[Figure]:
    """``clock_speedup`` of the SLs that were timed, and ``clock_simulated``, the simulated one on the same prompts."""
    n = len(clock)
    for replayed in sweep:
        if replayed.lane in clock:
            draft, policy = replayed.draft, replayed.policy
            speedup = Bootstrap(n).ratio(clock[PLAIN], clock[replayed.lane])
            yield Figure(draft, policy, ALL, "clock_speedup", *speedup, n)
            yield Figure(draft, policy, ALL, "clock_simulated", replayed.pick(clock.index).speedup, n=n)


def plain_on_clock(readings: Sequence[dict[str, Any]], costs: Costs) -> list[Figure]:
    """``clock_over_costs``: what plain decoding took on the clock over what its cost curve says, ``tokens (v(1) + o)``;
    none if it was never timed.

    Every speedup has plain decoding's time in it, so where this is not 1, all points on the clock differ from the
    simulated ones by that factor, whatever their draft and SL.
    """
    runs = [reading["lanes"][PLAIN] for reading in readings]
    expected = sum(run["tokens"] for run in runs) * (costs.verify(1) + costs.overhead) * costs.target_s
    took = sum(run["decode_s"] for run in runs)
    return [Figure("", PLAIN, ALL, "clock_over_costs", took / expected)] if expected else []


def break_even_c(sweep: Sequence[Replayed]) -> float:
    """The draft cost at which the best static SL gains nothing: the largest over SLs n of

        ``(tokens (v(1) + o) - sum over iterations of (v(n'+1) + o)) / (drafted tokens + first / c iterations)``

    with n' the SL of each iteration; 0 if even a free draft gains nothing.
    """
    return max(0.0, *map(_break_even, sweep))


def _break_even(replayed: Replayed) -> float:
    costs, draft, lengths = replayed.costs, replayed.draft, replayed.lengths
    checks = sum(costs.verify(n + 1) + costs.overhead for n in lengths)
    c = costs.draft_step[draft]
    drafted = sum(n + (costs.start(n, draft) / c if c else 0.0) for n in lengths)  # first steps cost more
    return (float(replayed.plain.sum()) - checks) / drafted if drafted else 0.0
