"""Acceptance heads: small trained models that tell how likely a drafted token is to be accepted.

A head belongs to one pair and one draft. It is fitted by ``python -m decoding fit``, written as
``<policy>.safetensors`` + ``<policy>.json`` into a ``policies`` folder, and used in two ways: token by
token in a lane (``score``) and over a whole recorded chain (``score_chain``), with equal results.
Only numpy: what-if and pages without torch can read heads too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..errors import UserError
from .base import DraftState

POLICIES = ("disco", "specdecpp", "costaware")  # those that need a fitted head
FOLDER = "policies"


@dataclass(slots=True)
class GuessFeatures:
    """Features of n guesses of a draft; an array is None where no head ``needs`` it.

    ``proposer[i]`` is the draft's last hidden state (the input of its lm_head) that proposed guess i;
    ``hidden[i]`` is the one with guess i as its *input*, which exists one draft step later.
    ``position[i]`` is the guess's output position, counted from the start of generation.
    """

    position: np.ndarray  # [n] integers
    p: np.ndarray | None = None  # [n]
    entropy: np.ndarray | None = None  # [n] nats
    top10: np.ndarray | None = None  # [n, 10] descending probabilities
    proposer: np.ndarray | None = None  # [n, hidden_size]
    hidden: np.ndarray | None = None  # [n, hidden_size]


@runtime_checkable
class Head(Protocol):
    """A fitted head. ``tuned`` holds what validation chose for its policy (thresholds, SL_max, tables)."""

    name: str  # the policy it serves, and the column of scores in a chain
    needs: frozenset[str]  # of "p", "entropy", "top10", "proposer", "hidden"
    tuned: dict[str, Any]

    def score(self, state: DraftState, index: int) -> float:
        """Probability that drafted token ``index`` holds, given that those before it hold."""

    def score_chain(self, features: GuessFeatures) -> np.ndarray:
        """The same for n guesses at once, [n] float64."""


def load_heads(folder: Path, target_fingerprint: str, draft_fingerprint: str) -> dict[str, Head]:
    """The heads found in ``folder`` by policy name; {} where nothing was fitted yet.

    Raises UserError for a corrupt file or one that was fitted for other weights.
    """
    from .policy_files import head_of, read_policy

    heads: dict[str, Head] = {}
    for name in POLICIES:
        if (folder / f"{name}.json").exists():
            heads[name] = head_of(read_policy(folder, name, target_fingerprint, draft_fingerprint))
    return heads


def need_head(name: str, heads: dict[str, Head] | None) -> Head:
    """The head of policy ``name``, or a UserError that tells how to get one."""
    if not heads or name not in heads:
        raise UserError(
            f"The policy {name} is not fitted for this pair and draft yet: fit first, with "
            f"python -m decoding fit --pair PAIR --draft DRAFT."
        )
    return heads[name]
