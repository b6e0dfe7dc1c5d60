"""Closed forms: the expected gain of speculative decoding if every guess holds with the same probability.

alpha: probability that a drafted token holds (independent and equal at every position); gamma: the SL; c: t_draft /
t_target; v: cost of a target pass over n tokens / over one; o: all other costs of an iteration / t_target. The papers
take v(n) = 1 and o = 0.
"""

from __future__ import annotations

from collections.abc import Callable


def _free(n_tokens: int) -> float:
    """v(n) = 1: verifying many tokens costs as much as producing one."""
    return 1.0


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens per iteration, ``(1 - alpha^(gamma+1)) / (1 - alpha)`` (Leviathan et al. 2023, eq. 1).

    It counts the target's own token; ``gamma + 1`` for alpha = 1. Raises ValueError for an impossible alpha or gamma.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha is a probability, not {alpha}")
    if gamma < 0:
        raise ValueError(f"gamma counts tokens, not {gamma}")
    return gamma + 1.0 if alpha == 1.0 else (1.0 - alpha ** (gamma + 1)) / (1.0 - alpha)


def speedup(alpha: float, gamma: int, c: float, v: Callable[[int], float] = _free, o: float = 0.0) -> float:
    """Speedup with measured costs: ``E (v(1) + o) / (gamma c + v(gamma + 1) + o)`` with E = :func:`expected_tokens`.

    With free verification (the defaults) it is ``(1 - alpha^(gamma+1)) / ((1 - alpha)(gamma c + 1))``: Leviathan et al.
    2023, theorem 3.8; DISCO (Mamou et al. 2024), eq. 1. With measured costs it is tokens per iteration over
    the iteration's time, as in the throughput model of "Decoding Speculative Decoding" (Yan et al. 2024), with the
    target pass's growth v and the loop's own work o.
    """
    return expected_tokens(alpha, gamma) * (v(1) + o) / (gamma * c + v(gamma + 1) + o)
