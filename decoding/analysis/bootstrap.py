"""Intervals: over prompts by bootstrap (Efron 1979), and of timing noise alone from the replays' residuals.

Every figure is made of sums over prompts, so that all tokens weigh the same; a mean of ratios would overweight short
texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

DRAWS = 2000
Total = Callable[[Any], np.ndarray]  # a value per prompt -> their sum in each draw


class Interval(NamedTuple):
    """A figure with its 95% bootstrap interval."""

    value: float
    low: float
    high: float


class Bootstrap:
    """Resamples ``n`` prompts with replacement; all figures use the same draws, so that paired values stay paired."""

    def __init__(self, n: int) -> None:
        drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1.0 / n), size=DRAWS)
        self._counts = np.vstack([np.ones((1, n)), drawn])  # row 0: the prompts as they are

    def interval(self, figure: Callable[[Total], np.ndarray]) -> Interval:
        """``figure(total)`` with the 2.5% and 97.5% points of its resampled values; ``total`` sums over prompts."""
        found = figure(lambda values: self._counts @ np.asarray(values, dtype=float))
        low, high = np.percentile(found[1:], [2.5, 97.5])
        return Interval(float(found[0]), float(low), float(high))

    def ratio(self, above: Any, below: Any) -> Interval:
        """``sum(above) / sum(below)``, paired by prompt."""
        return self.interval(lambda total: total(above) / total(below))

    def cut(self, ours: Any, theirs: Any) -> Interval:
        """``1 - sum(ours) / sum(theirs)``, paired by prompt."""
        return self.interval(lambda total: 1.0 - total(ours) / total(theirs))

    def excess(self, one: tuple[Any, Any], other: tuple[Any, Any]) -> Interval:
        """One ratio of sums over another, minus one, all paired by prompt."""
        return self.interval(lambda total: total(one[0]) / total(one[1]) / (total(other[0]) / total(other[1])) - 1.0)


def clock_noise(
    ours: np.ndarray, theirs: np.ndarray, ours_simulated: np.ndarray, theirs_simulated: np.ndarray
) -> float:
    """Half of the 95% interval that timing noise alone leaves to ``sum(ours) / sum(theirs)``, given these prompts.

    Model: a timing is the replay's simulated cost times one factor per policy, plus noise. The noise of both policies
    in one reading is kept together (a busy moment cancels in part), and the error of a ratio of sums follows to first
    order. Errors of the replay count as noise too, so the interval is rather too wide.
    """
    n = len(ours)
    if n < 2:
        return 0.0
    left = [
        spent / spent.sum() - simulated / simulated.sum()
        for spent, simulated in ((ours, ours_simulated), (theirs, theirs_simulated))
    ]
    deviation = float(np.std(left[0] - left[1], ddof=1)) * n**0.5
    return 1.96 * deviation * float(ours.sum() / theirs.sum())
