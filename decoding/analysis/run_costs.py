"""What iterations cost during a run, by its own clock: the costs at which lanes are simulated beside its measured ones.

The cost curves of a run are measured before it, and kept for long: policies weigh them, and a run file repeats its run
with them. They need not hold while the lanes run, and a simulated lane is comparable with measured ones only at the
costs that held for those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean, median

import numpy as np

from ..records.trace import Costs, Run, Trace

MIN_ITERATIONS = 3  # iterations of a size, below which the curve is trusted more than the clock
CERTAIN, UNMEASURED = 1e6, 1e-3  # weights, in iterations, of the unit v(1) and of sizes that hardly ran

Measured = Mapping[int, list[float]]  # size -> the cost of each iteration of that size


def run_costs(run: Run) -> Costs:
    """The cost curves of ``run``, corrected by its iterations; as they are if it has no timed autoregressive lane.

    A cost is in units of the autoregressive lane's mean seconds per iteration in the same repeat, which count as
    ``v(1) + o``. v(n) is the mean over the iterations of all lanes that verify n > 1 rows; for an n that fewer than
    three do, the curve is scaled by the ratio at the measured n on either side, or at the nearest one; where longer
    passes come out cheaper than shorter ones, all of these get their mean. ``first`` and c are the straight line
    through each draft's means. Then the curves are scaled until each static lane that mostly guessed comes to the
    median over its repeats. Trees do not count.
    """
    plain = run.baseline
    if plain is None or not plain.iterations or not plain.repeats:
        return run.costs
    units = [repeat.decode_s / len(plain.iterations) / run.costs.iteration(0, None) for repeat in plain.repeats]
    if min(units) <= 0:
        return run.costs
    verifying: dict[int, list[float]] = defaultdict(list)
    drafting: dict[str, dict[int, list[float]]] = {draft: defaultdict(list) for draft in run.costs.draft_step}
    timed = [trace for trace in run.lanes if trace.draft in drafting and trace.iterations and trace.repeats]
    for trace in timed:
        for n, draft_cost, verify_cost in _iterations(trace, units):
            drafting[str(trace.draft)][n].append(draft_cost)
            verifying[n + 1].append(verify_cost)
    lines = {draft: _line(run.costs, draft, found) for draft, found in drafting.items()}
    own = replace(
        run.costs,
        verify_curve=_corrected(run.costs, verifying),
        draft_step={draft: c for draft, (_, c) in lines.items()},
        first_step={**run.costs.first_step, **{draft: first for draft, (first, _) in lines.items()}},
    )
    return _met(own, [(trace, _whole(trace, units)) for trace in timed if trace.policy == "static" and _guesses(trace)])


def _guesses(trace: Trace) -> bool:
    """Whether most iterations guess; where few do, the lane's cost says little of theirs."""
    return sum(it.n_drafted > 0 for it in trace.iterations) > len(trace.iterations) / 2


def _iterations(trace: Trace, units: list[float]) -> Iterator[tuple[int, float, float]]:
    """(SL, cost of drafting, cost of verifying) of the iterations that drafted a chain.

    They are medians over the repeats. Medians leave out what was slow in one repeat only, but every repeat's time
    contains such moments: so they are scaled to add up to what the lane took.
    """

    def medians(part: str) -> list[float]:
        columns = zip(*(getattr(repeat, part) for repeat in trace.repeats))
        return [median(seconds / unit for seconds, unit in zip(column, units)) for column in columns]

    drafting, verifying = medians("draft_s"), medians("verify_s")
    left_in = sum(map(sum, (drafting, verifying, medians("policy_s"), medians("rest_s"))))
    factor = _whole(trace, units) / left_in if left_in else 1.0
    for iteration, draft_cost, verify_cost in zip(trace.iterations, drafting, verifying):
        if iteration.drafted and iteration.parents is None:
            yield iteration.n_drafted, factor * draft_cost, factor * verify_cost


def _whole(trace: Trace, units: list[float]) -> float:
    """The lane's cost in the repeat of its median speedup."""
    return 1 / median(unit / repeat.decode_s for repeat, unit in zip(trace.repeats, units))


def _means(found: Measured) -> dict[int, float]:
    return {n: fmean(costs) for n, costs in sorted(found.items()) if len(costs) >= MIN_ITERATIONS}


def _corrected(costs: Costs, found: Measured) -> list[float]:
    """v with the measured values in place of its own, and scaled between and beyond them; then by isotonic regression,
    since a pass over more tokens is never cheaper and some of these means are of few iterations.
    """
    from scipy.optimize import isotonic_regression

    measured = {n: cost for n, cost in _means(found).items() if cost > 0}
    if not measured:
        return costs.verify_curve
    sizes = range(2, max(len(costs.verify_curve), *measured) + 1)
    ratios = np.interp(sizes, list(measured), [cost / costs.verify(n) for n, cost in measured.items()])
    v = [costs.verify_curve[0], *(costs.verify(n) * float(ratio) for n, ratio in zip(sizes, ratios))]
    weights = [CERTAIN, *(len(found[n]) if n in measured else UNMEASURED for n in sizes)]
    return [float(one) for one in isotonic_regression(v, weights=weights).x]


def _line(costs: Costs, draft: str, found: Measured) -> tuple[float, float]:
    """(first, c) by weighted least squares; the curve's own, scaled, where a line would fall or start below zero."""
    known, c = costs.start(1, draft), costs.draft_step[draft]
    means = _means(found)
    weights = [len(found[n]) for n in means]
    if len(means) > 1:
        slope, start = np.polyfit(list(means), list(means.values()), 1, w=np.sqrt(weights))
        if slope > 0 and start >= 0:
            return float(start), float(slope)
    curve = sum(weight * (known + n * c) for n, weight in zip(means, weights))
    factor = sum(weight * cost for weight, cost in zip(weights, means.values())) / curve if curve else 1.0
    return known * factor, c * factor


def _met(costs: Costs, static: list[tuple[Trace, float]]) -> Costs:
    """``costs``, scaled until each static lane costs what it took.

    Means over several lanes, a straight line, and the curve where a size hardly ran leave some percent between them. v
    gets a factor at each SL that ran, between two of them one between theirs, and each draft's line gets one: of those
    that meet all lanes the nearest to 1, and where none do, those that come nearest to all.
    """
    if not static:
        return costs
    drafts = list(costs.draft_step)
    sls = sorted({max(it.n_drafted for it in trace.iterations) for trace, _ in static})
    at_sls = np.eye(len(sls))
    parts, missing = [], []
    for trace, took in static:
        sizes = [it.n_drafted for it in trace.iterations if it.drafted]
        drafted = sum(costs.start(n, trace.draft) + n * costs.draft_step[str(trace.draft)] for n in sizes)
        verified = [sum(costs.verify(n + 1) * np.interp(n, sls, one) for n in sizes) for one in at_sls]
        parts.append([*verified, *(drafted if draft == trace.draft else 0.0 for draft in drafts)])
        missing.append(took - sum(costs.iteration(it.n_drafted, trace.draft, trace.policy) for it in trace.iterations))
    factors = 1 + np.linalg.lstsq(np.array(parts), np.array(missing), rcond=None)[0]
    if min(factors) <= 0:
        return costs
    verifying = np.interp(range(1, len(costs.verify_curve)), sls, factors[: len(sls)])
    drafting = dict(zip(drafts, map(float, factors[len(sls) :])))
    return replace(
        costs,
        verify_curve=[
            costs.verify_curve[0],
            *(float(v * factor) for v, factor in zip(costs.verify_curve[1:], verifying)),
        ],
        draft_step={draft: c * drafting[draft] for draft, c in costs.draft_step.items()},
        first_step={draft: first * drafting.get(draft, 1.0) for draft, first in costs.first_step.items()},
    )
