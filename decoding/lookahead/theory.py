"""The closed form of what an iteration gives if every guess holds with the same probability.

Over the time of an iteration it is the throughput model of "Decoding Speculative Decoding" (Yan et al. 2024); with free
verification, the speedup of Leviathan et al. 2023, theorem 3.8, and of DISCO (Mamou et al. 2024), eq. 1.
"""

from __future__ import annotations


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens per iteration, ``(1 - alpha^(gamma+1)) / (1 - alpha)`` (Leviathan et al. 2023, eq. 1), with ``alpha`` the
    probability that a drafted token holds and ``gamma`` the SL.

    It counts the target's own token; ``gamma + 1`` for alpha = 1. Raises ValueError for an impossible alpha or gamma.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha is a probability, not {alpha}")
    if gamma < 0:
        raise ValueError(f"gamma counts tokens, not {gamma}")
    return gamma + 1.0 if alpha == 1.0 else (1.0 - alpha ** (gamma + 1)) / (1.0 - alpha)
