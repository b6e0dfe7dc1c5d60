"""What a policy may see of a draft step: computed in one pass over the draft's logits, on the CPU, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

TOP = 10
NEGLIGIBLE = np.float32(1e-4)  # next to the top probability: sorting what lies below costs more than it tells
FAR_BELOW = np.float32(-1e4)  # stands in for -inf: its exponential is 0 too, but 0 * it is not NaN


def as_rows(logits: Any) -> np.ndarray:
    """Logits [n, vocab] as a float32 numpy array; on the CPU a view, not a copy."""
    if isinstance(logits, np.ndarray):
        return logits
    return logits.numpy() if logits.device.type == "cpu" else logits.float().cpu().numpy()


class FeatureReader:
    """Probability, entropy and top-10 of one row of logits, with buffers that are kept between calls."""

    def __init__(self, vocab_size: int, masked: bool = False) -> None:
        """``masked``: some logits may be -inf (top-k, top-p)."""
        self._masked = masked
        self._shifted = np.empty(vocab_size, dtype=np.float32)
        self._exp = np.empty(vocab_size, dtype=np.float32)
        self._ones = np.ones(vocab_size, dtype=np.float32)

    def read(self, row: np.ndarray, token: int, needs: frozenset[str]) -> tuple[float, float, np.ndarray | None]:
        """Features of the draft's distribution softmax(row) and its choice ``token``.

        Args:
            row: [vocab] float32 logits, processed by the rule (at temperature 0: as they are).
            token: what the draft chose.
            needs: "entropy" and "top10" are computed only where asked for.

        Returns:
            p of ``token``; entropy in nats (0.0 where not needed); top-10 probabilities [10] float32,
            descending, or None.
        """
        shifted = np.subtract(row, row.max(), out=self._shifted)
        exp = np.exp(shifted, out=self._exp)
        total = np.dot(exp, self._ones)  # several times quicker than exp.sum()
        entropy = self._entropy(shifted, exp, total) if "entropy" in needs else 0.0
        top10 = _largest(exp) / total if "top10" in needs else None
        return float(exp[token] / total), entropy, top10

    def _entropy(self, shifted: np.ndarray, exp: np.ndarray, total: np.floating) -> float:
        """H = log Z - sum(e^s s) / Z for s the logits less their maximum and Z = sum(e^s)."""
        if self._masked:
            shifted = np.maximum(shifted, FAR_BELOW, out=shifted)
        weighted = np.dot(exp, shifted)
        return max(0.0, float(np.log(total) - weighted / total))


def _largest(exp: np.ndarray) -> np.ndarray:
    """The ten largest entries, descending; those under NEGLIGIBLE of the largest one (which is 1) are 0."""
    near = exp[exp > NEGLIGIBLE]
    if len(near) > 4 * TOP:
        near = np.partition(near, len(near) - TOP)[len(near) - TOP :]
    near.sort()
    found = near[::-1][:TOP]
    if len(found) == TOP:
        return found
    padded = np.zeros(TOP, dtype=np.float32)
    padded[: len(found)] = found
    return padded
