"""Acceptance heads: small trained models that tell how likely a drafted token is to be accepted.

A head belongs to one pair and one draft. It is fitted by ``python -m decoding fit``, written as
``<policy>.safetensors`` + ``<policy>.json`` into a ``policies`` folder, and used in two ways: token by
token by its policy in a lane, and over a whole recorded chain (``score_chain``), with equal results.
Only numpy: what-if and pages without torch can read heads too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..errors import UserError
from ..records.pairs import find_pair
from ..records.trace import Run
from .policy_files import exists, read_policy
from .specs import all_specs

FOLDER = "policies"


@dataclass(slots=True)
class GuessFeatures:
    """Features of n guesses of a draft; an array is None where no head ``needs`` it.

    ``proposer[i]`` is the draft's last hidden state (the input of its lm_head) that proposed guess i;
    ``hidden[i]`` is the one with guess i as its *input*, which exists one draft step later.
    ``position[i]`` is the guess's output position, counted from the start of generation. Guess i was made after
    the tokens ``before + given[:i]``: along the target's text ``given`` is that text; in a tail, the guesses.
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


@runtime_checkable
class Head(Protocol):
    """A fitted head. ``tuned`` holds what validation chose for its policy (thresholds, SL_max, tables)."""

    name: str  # the policy it serves, and the column of scores in a chain
    needs: frozenset[str]  # of "p", "entropy", "top10", "margin", "proposer", "hidden"
    tuned: dict[str, Any]

    def score_chain(self, features: GuessFeatures) -> np.ndarray:
        """Probability of each guess that it holds, given that those before it hold; [n]."""


class Heads(dict[str, Head]):
    """Heads by policy name. ``faults``: a sentence for each policy whose files are there but cannot be used."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[str, str] = {}


def load_heads(folder: Path, target_fingerprint: str | None, draft_fingerprint: str | None) -> Heads:
    """The heads found in ``folder`` by policy name; empty where nothing was fitted yet.

    Corrupt files and those fitted for other weights become ``faults``, told when their lane is asked for;
    a fingerprint of None is not checked.
    """
    heads = Heads()
    for name, spec in all_specs().items():
        if spec.head_from is None or not exists(folder, name):
            continue
        try:
            policy = read_policy(folder, name, target_fingerprint, draft_fingerprint)
            heads[name] = spec.head_from(policy)
        except UserError as error:
            heads.faults[name] = str(error)
    return heads


def need_head(name: str, heads: Mapping[str, Head] | None) -> Head:
    """The head of policy ``name``, or a UserError that tells how to get one."""
    if heads and name in heads:
        return heads[name]
    if isinstance(heads, Heads) and name in heads.faults:
        raise UserError(heads.faults[name])
    raise UserError(
        f"The policy {name} is not fitted for this pair and draft yet: fit first, with "
        "python -m decoding fit --pair PAIR --draft DRAFT."
    )


def heads_of(run: Run, draft: str | None = None) -> dict[str, Head]:
    """The heads of ``draft`` (None: the pair's own) by policy name; {} where the draft is not installed.

    Those fitted for other weights than the run's are left out. Raises UserError where there is no such pair.
    """
    name = draft or run.pair.default_draft
    known, pair = run.pair.drafts.get(name), find_pair(run.pair.name)
    if known is None or name not in pair.drafts:
        return {}
    return load_heads(Path(pair.drafts[name]) / FOLDER, run.pair.target.fingerprint, known.fingerprint)
