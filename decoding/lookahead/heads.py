"""Learned heads: what estimates, for each guess of a draft, the probability that the target accepts it.

A policy asks its head live, token by token, in its own quick way. The seam here is the other use: the chain
records every head's probabilities along a text in batches, so that what-if can replay learned policies
without any model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(slots=True)
class ChainFeatures:
    """Features of n guesses that follow each other (a tail) or stand each on the target's text (along).

    The row of a guess holds what a live policy would have seen of it; columns that no head needs are None.
    """

    position: np.ndarray  # [n] int: output position of each guess
    p: np.ndarray  # [n] float32: the draft's probability of its guess
    entropy: np.ndarray  # [n] float32, nats
    top10: np.ndarray | None = None  # [n, 10] float32, descending
    hidden: np.ndarray | None = None  # [n, hidden_size] float32: the state with the guess itself as input


class Head(Protocol):
    """A fitted head of one draft."""

    name: str  # the policy it belongs to; its column in Guesses.scores
    needs: frozenset[str]  # "p", "entropy", "top10", "hidden"

    def score_chain(self, features: ChainFeatures) -> list[float]:
        """Acceptance probability of each guess, [n], as the live policy would have computed it."""
        ...


def load_heads(pair: Any, draft: str) -> dict[str, Head]:
    """All heads fitted for ``draft`` of ``pair``, by policy name; {} where none was fitted.

    Raises UserError where a file is corrupt or belongs to other weights.
    """
    return {}
