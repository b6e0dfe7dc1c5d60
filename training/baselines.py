"""Baselines for the target's held-out loss: gzip, xz and a 5-gram model, in bits per byte of the same text."""

from __future__ import annotations

import gzip
import lzma
import math

import numpy as np

ORDER = 5
MODULUS = np.uint64(0x9E3779B97F4A7C15)


def compressed_bits(text: str) -> dict[str, float]:
    """Bits per byte of ``gzip -9`` and ``xz -9`` over the whole text."""
    data = text.encode()
    sizes = {"gzip": len(gzip.compress(data, 9)), "xz": len(lzma.compress(data, preset=9))}
    return {name: 8 * size / len(data) for name, size in sizes.items()}


def _keys(tokens: np.ndarray, n: int) -> np.ndarray:
    """A 64-bit key of each n-gram. Shape (tokens - n + 1,)."""
    keys = np.zeros(len(tokens) - n + 1, dtype=np.uint64)
    for offset in range(n):
        keys = keys * MODULUS + tokens[offset : offset + len(keys)].astype(np.uint64) + np.uint64(1)
    return keys


class _Counts:
    """Counts of keys, looked up by binary search; an unseen key counts 0."""

    def __init__(self, keys: np.ndarray) -> None:
        self.keys, self.counts = np.unique(keys, return_counts=True)

    def __call__(self, keys: np.ndarray) -> np.ndarray:
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.counts[places], 0).astype(np.float64)


def five_gram_bits(train: np.ndarray, test: np.ndarray, vocabulary: int) -> float:
    """Mean bits per token of an interpolated 5-gram with Witten-Bell smoothing over the same tokens.

    P_n(w|h) = (count(hw) + T(h) P_{n-1}(w|h')) / (count(h) + T(h)), with T(h) the number of distinct tokens seen after
    h and P_0 uniform (Witten and Bell 1991; Chen and Goodman 1998, section 2.5).
    """
    probability = np.full(len(test), 1.0 / vocabulary)
    for n in range(1, min(ORDER, len(test)) + 1):
        grams = np.unique(_keys(train, n), return_index=True)[1]
        counts = _Counts(_keys(train, n))
        if n == 1:
            contexts, types = (
                np.full(len(test), float(len(train))),
                np.full(len(test), float(len(counts.keys))),
            )
        else:
            before = _keys(test[:-1], n - 1)
            contexts = _Counts(_keys(train[:-1], n - 1))(before)
            types = _Counts(_keys(train[:-1], n - 1)[grams])(before)
        here = slice(n - 1, None)
        seen, contexts, types = (
            counts(_keys(test, n)),
            contexts[-len(test) + n - 1 :],
            types[-len(test) + n - 1 :],
        )
        total = contexts + types
        mixed = (seen + types * probability[here]) / np.maximum(total, 1.0)
        probability[here] = np.where(total > 0, mixed, probability[here])
    return float(-np.log2(probability).mean())


def bits_per_byte(nats_per_token: float, tokens: int, size: int) -> float:
    """Converts nats per token to bits per byte of the text that the tokens encode."""
    return nats_per_token / math.log(2) * tokens / size
