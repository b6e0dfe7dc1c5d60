"""costaware's acceptance heads: the probability that a token holds, from features that cost next to nothing.

They are how sure the draft is of its token (its *leads*, see :data:`.heads.LEADS`), whether the token continues a
repetition of the text (:mod:`.repetition`), and how often the target has written such a sequence (:mod:`.ngrams`). A
small network was trained on them. Without counts of n-grams its logits are stored as a table over repetition and lead;
with them it is evaluated for each token.

In a long repetition the leads add no information: there the head reads the repetition alone, and a live lane does not
compute them. Validation latency decides which head is used, and from which length of a repetition on it needs no lead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from operator import mul
from typing import Any

import numpy as np

from .base import DraftState
from .disco import sigmoid
from .heads import HIGHEST, LEADS, LOWEST, Architecture, Weights, leads_of, limited
from .ngrams import N_LEVELS, Ngrams
from .repetition import LONGEST, N_EVIDENCE, evidence_along

POINTS_PER_UNIT = 4  # leads in the table
N_POINTS = int((HIGHEST - LOWEST) * POINTS_PER_UNIT) + 1
FEATURES_OF_NETWORKS = (("p",), ("p", "margin"))


class CostAwareHead(ABC):
    """Logits of the probability that a token holds."""

    ngrams: Ngrams | None = None
    _sure_from: int  # length of a repetition from which on it reads no lead

    def __init__(self, features: Sequence[str], tuned: dict[str, Any]) -> None:
        """``features``: those of :data:`.heads.LEADS` that it reads, in order."""
        self.tuned = tuned
        self.features = {name: LEADS[name] for name in features}
        self.needs = frozenset(features)

    def needs_lead(self, evidence: int) -> bool:
        """False if the repetition alone determines the chance."""
        return not self._sure_from <= evidence <= LONGEST

    @abstractmethod
    def logit(self, evidence: int, leads: Sequence[float], levels: Sequence[int]) -> float:
        """Logit of the probability that a token holds, by its evidence of repetition, its leads in nats (one for each
        of ``features``; any numbers where :meth:`needs_lead` is False), and its levels of n-grams ([] if the head has
        no ``ngrams``).
        """

    def levels(self, text: Sequence[int], guess: int) -> Sequence[int]:
        """The levels of ``guess`` after ``text``, of which only the last two tokens count."""
        if self.ngrams is None:
            return ()
        return self.ngrams.levels(text[-2] if len(text) > 1 else -1, text[-1] if text else -1, guess)

    def score_chain(self, state: DraftState) -> np.ndarray:
        """See :class:`~decoding.lookahead.heads.Head`."""
        along = state.text, state.tokens, state.tokens
        evidence = evidence_along(*along)
        leads = np.column_stack([leads_of(name, getattr(state, name)) for name in self.features]).tolist()
        levels = [()] * len(evidence) if self.ngrams is None else self.ngrams.levels_along(*along).tolist()
        return np.array([sigmoid(self.logit(*one)) for one in zip(evidence, leads, levels, strict=True)])


class TableHead(CostAwareHead):
    """Logits by (evidence of repetition, lead), interpolated linearly."""

    def __init__(self, weights: Weights, architecture: Architecture, tuned: dict[str, Any]) -> None:
        """``weights``: "table" [N_EVIDENCE, N_POINTS] float32."""
        super().__init__([architecture["feature"]], tuned)
        whole = weights["table"].reshape(N_EVIDENCE, N_POINTS)
        self._rows: list[list[float]] = whole.tolist()  # Python floats: one cell is read at a time
        self._sure_from = _first_flat(self._rows)

    def logit(self, evidence: int, leads: Sequence[float], levels: Sequence[int] = ()) -> float:
        row = self._rows[evidence]
        if not self.needs_lead(evidence):
            return row[0]
        at = (limited(leads[0]) - LOWEST) * POINTS_PER_UNIT
        left = int(at)
        if left >= N_POINTS - 1:
            return row[-1]
        low = row[left]
        return low + (at - left) * (row[left + 1] - low)


class NetworkHead(CostAwareHead):
    """A network with one small hidden layer (ReLU) on the leads, the repetition, and the levels of n-grams.

    It is evaluated in plain Python: after a pass of a model the caches are cold, and numpy's few calls take longer.
    """

    def __init__(self, weights: Weights, architecture: Architecture, tuned: dict[str, Any]) -> None:
        """``weights``: "first" [width, n_inputs + 1] and "last" [width + 1] float32: the layers, each with its bias
        last; "alone" [runs]: logits of the longest repetitions, the last one that of LONGEST tokens; and "ngrams".
        """
        super().__init__(architecture["features"], tuned)
        self.ngrams, self._alone = Ngrams(weights["ngrams"]), weights["alone"].tolist()
        self._sure_from = LONGEST + 1 - len(self._alone)
        if self._sure_from < 1:
            raise ValueError(f"repetitions of more than {LONGEST} tokens")
        first = weights["first"].reshape(-1, n_inputs(self.features) + 1)
        last = weights["last"].reshape(len(first) + 1)
        self._units: list[tuple[list[float], float]] = list(zip(first.tolist(), last[:-1].tolist(), strict=True))
        self._bias = float(last[-1])

    def logit(self, evidence: int, leads: Sequence[float], levels: Sequence[int]) -> float:
        if not self.needs_lead(evidence):
            return self._alone[evidence - LONGEST - 1]
        inputs = (*leads, *repetition_inputs(evidence, leads[0]), *levels, 1.0)
        total = self._bias
        for weights, outgoing in self._units:
            hidden = sum(map(mul, weights, inputs))
            if hidden > 0.0:
                total += outgoing * hidden
        return total


def n_inputs(features: Collection[str]) -> int:
    """Number of the network's inputs: its leads, :func:`repetition_inputs` and the levels."""
    return len(features) + 4 + N_LEVELS


def repetition_inputs(evidence: int, lead: float) -> tuple[float, float, float, float]:
    """ln(1 + length) of the repetition; +1 if the guess continues it, -1 if it leaves it, 0 without one; its products
    with that logarithm and with ``lead``.
    """
    if evidence == 0:
        return 0.0, 0.0, 0.0, 0.0
    agrees, run = (1.0, evidence) if evidence <= LONGEST else (-1.0, evidence - LONGEST)
    length = LOG_LENGTHS[run]
    return length, agrees, agrees * length, agrees * lead


LOG_LENGTHS: list[float] = np.log1p(np.arange(LONGEST + 1)).tolist()


def _first_flat(rows: Sequence[Sequence[float]]) -> int:
    """The run of agreeing tokens from which on no row depends on the lead; LONGEST + 1 if the longest does."""
    first = LONGEST + 1
    while first > 1 and min(rows[first - 1]) == max(rows[first - 1]):
        first -= 1
    return first
