"""Curves through timings: never falling where more work cannot take less time. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from ..records.trace import Costs


def fit_checks(seconds: Mapping[int, Sequence[float]]) -> list[float]:
    """v(1), v(2), ... up to the largest n that was timed: medians by isotonic regression, over that of n = 1.

    Args:
        seconds: by the number of tokens in a target pass, what passes took. Between measured lengths v is linear.
    """
    from sklearn.isotonic import isotonic_regression

    lengths = sorted(seconds)
    medians = [median(seconds[n]) for n in lengths]
    grown = isotonic_regression(medians, sample_weight=[len(seconds[n]) for n in lengths])
    v = np.interp(range(lengths[0], lengths[-1] + 1), lengths, grown / grown[0])
    return [float(one) for one in v]


def fit_steps(seconds: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """(a draft step, what drafting at all takes beyond): the line through what chains of n steps took.

    Long chains count less, for they err by more. On a machine so busy that the line falls, the mean step stands in:
    a step is never free. (0, 0) where the draft never had anything to propose.
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
    """By how much, at most, a pass over more tokens was read to be cheaper than one over fewer: 0.2 is a fifth."""
    dearest, found = 0.0, 0.0
    for n in sorted(seconds):
        read = median(seconds[n])
        dearest = max(dearest, read)
        found = max(found, 1.0 - read / dearest)
    return found


def smooth_costs(measured: Sequence[Costs]) -> Costs:
    """Medians of several measurements; v made to grow, by isotonic regression.

    One run's v(n) is good to some percent, and the tuning of static-opt would pick the SL whose v happened to be
    measured low. Reading more tokens never takes a pass less work.
    """
    v = fit_checks({n: column for n, column in enumerate(zip(*(costs.v for costs in measured)), start=1)})
    return Costs(
        target_s=median(costs.target_s for costs in measured),
        v=v,
        c={name: median(costs.c[name] for costs in measured) for name in measured[0].c},
        first={name: median(costs.first[name] for costs in measured) for name in measured[0].first},
        o=median(costs.o for costs in measured),
        doubt=median(costs.doubt for costs in measured),
    )
