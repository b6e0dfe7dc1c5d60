"""Intervals over prompts: the bootstrap of ratios of sums."""

from __future__ import annotations

import numpy as np

from .results import Interval

DRAWS = 2000


class Bootstrap:
    """Resamples ``n`` prompts with replacement; the same draws for every figure, so that pairs stay pairs."""

    def __init__(self, n: int, draws: int = DRAWS, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._counts = rng.multinomial(n, np.full(n, 1.0 / n), size=draws) if n else np.zeros((draws, 0))

    def ratio(self, above: np.ndarray, below: np.ndarray) -> Interval:
        """``sum(above) / sum(below)`` over prompts, with the 2.5% and 97.5% points of its resampled values."""
        return self._interval(above, below, lambda ratio: ratio)

    def cut(self, ours: np.ndarray, theirs: np.ndarray) -> Interval:
        """``1 - sum(ours) / sum(theirs)``, paired by prompt."""
        return self._interval(ours, theirs, lambda ratio: 1.0 - ratio)

    def _interval(self, above: np.ndarray, below: np.ndarray, shape) -> Interval:
        above, below = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
        drawn = shape((self._counts @ above) / (self._counts @ below))
        low, high = np.percentile(drawn, [2.5, 97.5])
        return Interval(float(shape(above.sum() / below.sum())), float(low), float(high))
