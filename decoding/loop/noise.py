"""Gumbel noise for the coupling rule, keyed by (seed, output position)."""

from __future__ import annotations

import numpy as np

from ..errors import UserError

MAX_BYTES = 4 * 2**30


def gumbel_noise(seed: int, n_positions: int, vocab_size: int) -> np.ndarray:
    """Standard Gumbel noise [n_positions, vocab_size], float32.

    A row depends only on the seed and its output position, so that all lanes, targets and drafts see the same noise at
    a position. Raises UserError if it would not fit in memory.
    """
    if n_positions * vocab_size * 4 > MAX_BYTES:
        raise UserError(
            f"The shared noise for {n_positions:,} tokens of a vocabulary of {vocab_size:,} would take more than "
            f"{MAX_BYTES // 2**30} GB: ask for fewer new tokens."
        )
    noise = np.empty((n_positions, vocab_size), dtype=np.float32)
    for position in range(n_positions):
        noise[position] = gumbel_row(seed, position, vocab_size)
    return noise


def gumbel_row(seed: int, position: int, vocab_size: int) -> np.ndarray:
    """The noise at one output position, [vocab_size] float32: -log(-log(u)) for uniform u in (0, 1)."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, position], dtype=np.uint64)))
    return generator.gumbel(size=vocab_size).astype(np.float32)
