"""Temperature, top-k and top-p, and the noise of the coupling rule: alike for the target's and the draft's logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..errors import UserError

MAX_NOISE_BYTES = 4 * 2**30


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
            least = np.partition(shaped, -self.top_k, axis=-1)[..., -self.top_k, None]
            shaped = np.where(shaped < least, -np.inf, shaped)
        if self.top_p < 1.0:
            shaped = _keep_top_p(shaped, self.top_p)
        return shaped


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis, float64, summing to 1."""
    exp = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)


def softmax_of_row(logits: np.ndarray) -> np.ndarray:
    """Probabilities of one row, float32, by torch: its code is in the CPU's caches after a pass of a model."""
    return torch.softmax(torch.from_numpy(logits), 0).numpy()


def _keep_top_p(logits: np.ndarray, top_p: float) -> np.ndarray:
    """Keeps the smallest set of most probable tokens whose probabilities reach ``top_p``, at least one token."""
    order = np.argsort(logits, axis=-1, kind="stable")
    ascending = softmax(np.take_along_axis(logits, order, axis=-1))
    remove = ascending.cumsum(axis=-1) <= 1.0 - top_p
    remove[..., -1] = False
    removed = np.zeros_like(remove)
    np.put_along_axis(removed, order, remove, axis=-1)
    return np.where(removed, -np.inf, logits)


def gumbel_noise(seed: int, n_positions: int, vocab_size: int) -> np.ndarray:
    """Standard Gumbel noise [n_positions, vocab_size], float32.

    A row depends only on the seed and its output position, so that all lanes, targets and drafts see the same noise at
    a position. Raises UserError if it would not fit in memory.
    """
    if n_positions * vocab_size * 4 > MAX_NOISE_BYTES:
        raise UserError(
            f"The shared noise for {n_positions:,} tokens of a vocabulary of {vocab_size:,} would take more than "
            f"{MAX_NOISE_BYTES // 2**30} GB: ask for fewer new tokens."
        )
    noise = np.empty((n_positions, vocab_size), dtype=np.float32)
    for position in range(n_positions):
        noise[position] = gumbel_row(seed, position, vocab_size)
    return noise


def gumbel_row(seed: int, position: int, vocab_size: int) -> np.ndarray:
    """The noise at one output position, [vocab_size] float32: -log(-log(u)) for uniform u in (0, 1)."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, position], dtype=np.uint64)))
    return generator.gumbel(size=vocab_size).astype(np.float32)
