"""Intervals: over prompts by bootstrap of ratios of sums, and of timing noise alone from the replays' residuals.

Every figure is a ratio of sums over prompts, so that all tokens weigh the same; a mean of ratios would overweight short
texts.
"""

from __future__ import annotations

import numpy as np

from .results import Interval

DRAWS = 2000
Ratio = tuple[np.ndarray, np.ndarray]  # by prompt: above and below the line of a ratio


class Bootstrap:
    """Resamples ``n`` prompts with replacement; all figures use the same draws, so that paired values stay paired."""

    def __init__(self, n: int, draws: int = DRAWS, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._counts = rng.multinomial(n, np.full(n, 1.0 / n), size=draws) if n else np.zeros((draws, 0))

    def ratio(self, above: np.ndarray, below: np.ndarray) -> Interval:
        """``sum(above) / sum(below)`` over prompts, with the 2.5% and 97.5% points of its resampled values."""
        return self._interval(above, below, lambda ratio: ratio)

    def cut(self, ours: np.ndarray, theirs: np.ndarray) -> Interval:
        """``1 - sum(ours) / sum(theirs)``, paired by prompt."""
        return self._interval(ours, theirs, lambda ratio: 1.0 - ratio)

    def excess(self, seconds: Ratio, simulated: Ratio) -> Interval:
        """A ratio of sums in ``seconds`` over the same ratio in ``simulated``, minus one, all paired by prompt."""
        drawn = _ratios(self._counts, seconds) / _ratios(self._counts, simulated) - 1.0
        ones = np.ones_like(self._counts[:1])
        value = _ratios(ones, seconds) / _ratios(ones, simulated) - 1.0
        low, high = np.percentile(drawn, [2.5, 97.5])
        return Interval(float(value[0]), float(low), float(high))

    def _interval(self, above: np.ndarray, below: np.ndarray, shape) -> Interval:
        above, below = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
        drawn = shape((self._counts @ above) / (self._counts @ below))
        low, high = np.percentile(drawn, [2.5, 97.5])
        return Interval(float(shape(above.sum() / below.sum())), float(low), float(high))


def _ratios(counts: np.ndarray, ratio: Ratio) -> np.ndarray:
    """The ratio of sums of ``ratio`` for each draw [draws, prompts]."""
    above, below = (np.asarray(part, dtype=float) for part in ratio)
    return (counts @ above) / (counts @ below)


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
