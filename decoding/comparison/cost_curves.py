"""Fits cost curves to timings; they never decrease, since more work cannot take less time. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from ..records.trace import Costs


def fit_verification(seconds: Mapping[int, Sequence[float]]) -> list[float]:
    """v(1), v(2), ... up to the largest n that was timed: medians by isotonic regression, divided by that of n = 1.

    Args:
        seconds: the times of target passes, by their number of tokens. Between measured lengths v is linear.
    """
    from sklearn.isotonic import isotonic_regression

    lengths = sorted(seconds)
    medians = [median(seconds[n]) for n in lengths]
    grown = isotonic_regression(medians, sample_weight=[len(seconds[n]) for n in lengths])
    v = np.interp(range(lengths[0], lengths[-1] + 1), lengths, grown / grown[0])
    return [float(one) for one in v]


def fit_steps(seconds: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """(time per draft step, fixed time of drafting): the line through the times of chains of n steps.

    Long chains weigh less because their errors are larger. If the line decreases (a busy machine), the mean step is
    used: a step is never free. (0, 0) if the draft never had anything to propose.
    """
    lengths = sorted(seconds)
    if not lengths:
        return 0.0, 0.0
    medians = np.array([median(seconds[n]) for n in lengths])
    n = np.array(lengths, dtype=float)
    step, first = np.polyfit(n, medians, 1, w=1.0 / n) if len(n) > 1 else (0.0, 0.0)
    if step > 0.0 and first >= 0.0:
        return float(step), float(first)
    return float(np.mean(medians / n)), 0.0


def contradiction(seconds: Mapping[int, Sequence[float]]) -> float:
    """The largest share by which a pass over more tokens was measured as cheaper than one over fewer."""
    highest, found = 0.0, 0.0
    for n in sorted(seconds):
        read = median(seconds[n])
        highest = max(highest, read)
        found = max(found, 1.0 - read / highest)
    return found


def smooth_costs(measured: Sequence[Costs]) -> Costs:
    """Medians of several measurements; v is made monotone by isotonic regression.

    One run's v(n) has errors of some percent, and the tuning of static-opt would pick an SL whose v happened to be
    measured low.
    """
    v = fit_verification(
        {n: column for n, column in enumerate(zip(*(costs.verify_curve for costs in measured)), start=1)}
    )
    return Costs(
        target_s=median(costs.target_s for costs in measured),
        verify_curve=v,
        draft_step={name: median(costs.draft_step[name] for costs in measured) for name in measured[0].draft_step},
        first_step={name: median(costs.first_step[name] for costs in measured) for name in measured[0].first_step},
        overhead=median(costs.overhead for costs in measured),
        contradiction=median(costs.contradiction for costs in measured),
    )
