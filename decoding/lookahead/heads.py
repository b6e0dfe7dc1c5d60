"""Acceptance heads: small trained models that predict how likely a drafted token is to be accepted.

A head belongs to one pair and one draft. It is fitted by ``python -m decoding fit``, written as
``<policy>.safetensors`` + ``<policy>.json`` into a ``policies`` folder, and used in two ways: token by
token by its policy in a lane, and over a whole recorded chain (``score_chain``), with equal results.
Only numpy: what-if and pages without torch can read heads too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

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


def leads_of(feature: str, values: np.ndarray) -> np.ndarray:
    """The leads [n] of tokens with these values of ``feature``; float64."""
    return np.array([LEADS[feature](float(value)) for value in values])


@dataclass(slots=True)
class GuessFeatures:
    """Features of n guesses of a draft; an array is None if no head ``needs`` it.

    ``proposer[i]`` is the draft's last hidden state (the input of its lm_head) that proposed guess i; ``hidden[i]`` is
    the state with guess i as its *input*, which exists one draft step later. ``position[i]`` is the guess's output
    position, counted from the start of generation. Guess i was made after the tokens ``before + given[:i]``: along the
    target's text ``given`` is that text; in a tail, the guesses.
    """

    position: np.ndarray  # [n] integers
    guess: Sequence[int | None] = ()  # [n] the guessed ids; None: the draft had nothing to propose
    given: Sequence[int] = ()  # [n]
    before: Sequence[int] = ()  # prompt and output before the first guess
    p: np.ndarray | None = None  # [n]
    entropy: np.ndarray | None = None  # [n] nats
    top10: np.ndarray | None = None  # [n, 10] descending probabilities
    margin: np.ndarray | None = None  # [n] nats: ln p of the guess - ln p of the strongest other token
    proposer: np.ndarray | None = None  # [n, hidden_size]
    hidden: np.ndarray | None = None  # [n, hidden_size]

    def needed(self, name: str) -> np.ndarray:
        """The array of that name. Raises ValueError, a programming error, if it was not computed."""
        array = getattr(self, name)
        if array is None:
            raise ValueError(f"the feature {name} was not computed: a head must name it in its needs")
        return array


@runtime_checkable
class Head(Protocol):
    """A fitted head. ``tuned`` holds its policy's settings chosen on validation (thresholds, SL_max, tables)."""

    name: str  # the policy it serves, and the column of scores in a chain
    needs: frozenset[str]  # of "p", "entropy", "top10", "margin", "proposer", "hidden"
    tuned: dict[str, Any]

    def score_chain(self, features: GuessFeatures) -> np.ndarray:
        """Probability that each guess holds, given that those before it hold; [n]."""
