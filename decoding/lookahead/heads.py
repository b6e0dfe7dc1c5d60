"""Acceptance heads: small trained models that predict how likely a drafted token is to be accepted.

A head belongs to one pair and one draft. It is fitted by ``python -m decoding fit``, written as
``<policy>.safetensors`` + ``<policy>.json`` into a ``policies`` folder, and used in two ways: token by
token by its policy in a lane, and over all guesses of a chain (``score_chain``), with equal results.
Only numpy: what-if and pages without torch can read heads too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from .base import DraftState

LOWEST, HIGHEST = -6.0, 14.0  # of a lead, in nats; only sampled tokens have a margin below 0


def log_odds(p: float) -> float:
    """ln(p / (1 - p)), within LOWEST and HIGHEST."""
    if p <= 0.0:
        return LOWEST
    return HIGHEST if p >= 1.0 else limited(math.log(p / (1.0 - p)))


def limited(lead: float) -> float:
    """``lead``, within LOWEST and HIGHEST."""
    return min(max(lead, LOWEST), HIGHEST)


LEADS: dict[str, Callable[[float], float]] = {"p": log_odds, "margin": limited}
"""How sure a draft is of its token (its *lead*), in nats, by the feature that it is computed from: the log-odds of the
token's probability, which takes a softmax, or the difference to the next best token's logit. Drafts differ in which of
them predicts acceptance better.
"""


def leads_of(feature: str, values: Iterable[float]) -> np.ndarray:
    """The leads [n] of tokens with these values of ``feature``; float64."""
    return np.array([LEADS[feature](float(value)) for value in values])


Weights = Mapping[str, np.ndarray]
Architecture = Mapping[str, Any]


class Head(Protocol):
    """A fitted head. ``tuned`` holds its policy's settings chosen on validation (thresholds, SL_max, tables)."""

    needs: frozenset[str]  # of "p", "entropy", "top10", "margin", "proposer", "hidden"
    tuned: dict[str, Any]

    def score_chain(self, state: DraftState) -> np.ndarray:
        """Probability that each guess of a chain holds, given that those before it hold; [n].

        ``state``: has what the head ``needs`` of every guess, and the text before them. Raises ValueError, a
        programming error, if it lacks some.
        """
