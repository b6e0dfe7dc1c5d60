"""What iterations cost during a run, by its own clock: the costs at which lanes are simulated beside its measured ones.

The cost curves of a run are measured before it, and kept for long: policies weigh them, and a run file repeats its run
with them. They need not hold while the lanes run, and a simulated lane is comparable with measured ones only at the
costs that held for those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median

import numpy as np

from ..records.trace import Costs, Run, Trace

MIN_ITERATIONS = 3  # iterations of a size, below which the curve is trusted more than the clock

Measured = Mapping[int, list[float]]  # size -> the cost of each iteration of that size


def run_costs(run: Run) -> Costs:
    """The cost curves of ``run``, corrected by its iterations; as they are if it has no timed autoregressive lane.

    An iteration's cost is the median over the repeats of its seconds over the autoregressive lane's mean seconds per
    iteration in the same repeat, which count as ``v(1) + o``. v(n) is the median over the iterations of all lanes that
    verify n > 1 rows; for an n that fewer than three do, the curve is scaled by the ratio at the measured n on either
    side, or at the nearest one. ``first`` and c are the straight line through each draft's medians. Trees do not count.
    """
    plain = run.baseline
    if plain is None or not plain.iterations or not plain.repeats:
        return run.costs
    units = [repeat.decode_s / len(plain.iterations) / run.costs.iteration(0, None) for repeat in plain.repeats]
    if min(units) <= 0:
        return run.costs
    verifying: dict[int, list[float]] = defaultdict(list)
    drafting: dict[str, dict[int, list[float]]] = {draft: defaultdict(list) for draft in run.costs.draft_step}
    for draft, found in drafting.items():
        for trace in (one for one in run.lanes if one.draft == draft):
            for n, draft_cost, verify_cost in _iterations(trace, units):
                found[n].append(draft_cost)
                verifying[n + 1].append(verify_cost)
    lines = {draft: _line(run.costs, draft, found) for draft, found in drafting.items()}
    return replace(
        run.costs,
        verify_curve=_corrected(run.costs, verifying),
        draft_step={draft: c for draft, (_, c) in lines.items()},
        first_step={**run.costs.first_step, **{draft: first for draft, (first, _) in lines.items()}},
    )


def _iterations(trace: Trace, units: list[float]) -> Iterator[tuple[int, float, float]]:
    """(SL, cost of drafting, cost of verifying) of the iterations that drafted a chain."""
    for at, iteration in enumerate(trace.iterations if trace.repeats else []):
        if iteration.drafted and iteration.parents is None:
            timed = [
                (repeat.draft_s[at] / unit, repeat.verify_s[at] / unit) for repeat, unit in zip(trace.repeats, units)
            ]
            draft_costs, verify_costs = zip(*timed)
            yield iteration.n_drafted, median(draft_costs), median(verify_costs)


def _medians(found: Measured) -> dict[int, float]:
    return {n: median(costs) for n, costs in sorted(found.items()) if len(costs) >= MIN_ITERATIONS}


def _corrected(costs: Costs, found: Measured) -> list[float]:
    """v with the measured values in place of its own, and scaled between and beyond them."""
    measured = {n: cost for n, cost in _medians(found).items() if cost > 0}
    if not measured:
        return costs.verify_curve
    sizes = range(2, max(len(costs.verify_curve), *measured) + 1)
    ratios = np.interp(sizes, list(measured), [cost / costs.verify(n) for n, cost in measured.items()])
    return [costs.verify_curve[0], *(costs.verify(n) * float(ratio) for n, ratio in zip(sizes, ratios))]


def _line(costs: Costs, draft: str, found: Measured) -> tuple[float, float]:
    """(first, c) by weighted least squares; the curve's own, scaled, where a line would fall or start below zero."""
    known, c = costs.start(1, draft), costs.draft_step[draft]
    medians = _medians(found)
    weights = [len(found[n]) for n in medians]
    if len(medians) > 1:
        slope, start = np.polyfit(list(medians), list(medians.values()), 1, w=np.sqrt(weights))
        if slope > 0 and start >= 0:
            return float(start), float(slope)
    curve = sum(weight * (known + n * c) for n, weight in zip(medians, weights))
    factor = sum(weight * cost for weight, cost in zip(weights, medians.values())) / curve if curve else 1.0
    return known * factor, c * factor
