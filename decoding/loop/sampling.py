"""Temperature, top-k and top-p, applied alike to the target's and the draft's logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Shaping:
    """How logits become the sampling distribution. top_k 0 and top_p 1 are off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """Logits [n, vocab] or [vocab] shaped in transformers' order of warpers: temperature, top-k, top-p.

        Removed tokens become -inf.
        """
        shaped = logits / np.float32(self.temperature) if self.temperature != 1.0 else logits
        if 0 < self.top_k < shaped.shape[-1]:
            shaped = _keep_top_k(shaped, self.top_k)
        if self.top_p < 1.0:
            shaped = _keep_top_p(shaped, self.top_p)
        return shaped


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis, float64, summing to 1."""
    exp = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)


def _keep_top_k(logits: np.ndarray, k: int) -> np.ndarray:
    kth = np.partition(logits, -k, axis=-1)[..., -k, None]
    return np.where(logits < kth, -np.inf, logits)


def _keep_top_p(logits: np.ndarray, top_p: float) -> np.ndarray:
    """Keeps the smallest set of most probable tokens whose probabilities reach ``top_p``, at least one token."""
    order = np.argsort(logits, axis=-1, kind="stable")
    ascending = softmax(np.take_along_axis(logits, order, axis=-1))
    remove = ascending.cumsum(axis=-1) <= 1.0 - top_p
    remove[..., -1] = False
    removed = np.zeros_like(remove)
    np.put_along_axis(removed, order, remove, axis=-1)
    return np.where(removed, -np.inf, logits)
