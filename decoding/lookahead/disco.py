"""DISCO: a classifier of the last drafted token decides whether to draft on (Mamou et al. 2024, arXiv 2405.04304).

C_i = FFN(Concat(Top_k(y_i), Ent(y_i), i)) with k = 10 and two layers; draft on while C_i >= threshold and the SL is
below SL_max. ``i`` counts from the start of generation (the paper's appendix D). The token below the threshold is still
checked. Width, threshold and SL_max are not published: ours are in the JSON file of the weights, chosen on the
validation split.

Most tokens are so likely (p, the first of the top-10) that the classifier would draft on for any other features. From
the probability ``sure`` upwards, found on validation for each threshold, a live lane neither computes the features nor
evaluates the classifier.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .base import DraftState, LookaheadPolicy
from .heads import Architecture, Weights
from .spec import TWENTIETHS, Argument, PolicySpec, Score

TOP = 10
LEAST = np.float32(1e-9)  # smallest probability whose logarithm is taken
N_INPUTS = TOP + 2  # top-10 probabilities, entropy, position


class DiscoHead:
    """FFN 12 -> width -> 1 with ReLU; the normalisation of its inputs is folded into the first layer."""

    needs = frozenset({"top10", "entropy"})  # p, their largest, comes with them

    def __init__(self, weights: Weights, architecture: Architecture, tuned: dict[str, Any]) -> None:
        """``weights``: "first" [width, 13] and "second" [width + 1] float32; the last column and the last entry are
        biases. ``architecture``: its "inputs" are the top-10 "probabilities" or their "logarithms".
        """
        self.tuned = tuned
        self._logs = architecture["inputs"] == "logarithms"
        self._first = weights["first"].reshape(-1, N_INPUTS + 1)
        self._second = weights["second"].reshape(len(self._first) + 1)
        self._input = np.ones(N_INPUTS + 1, dtype=np.float32)  # the last one stays 1: it carries the bias
        self._top = self._input[:TOP]
        self._hidden = np.ones(len(self._second), dtype=np.float32)
        self._before = self._hidden[:-1]

    def score(self, top10: np.ndarray, entropy: float, position: int) -> float:
        """Acceptance probability of one token; no allocation."""
        if self._logs:
            np.maximum(top10, LEAST, out=self._top)
            np.log(self._top, out=self._top)
        else:
            self._top[:] = top10
        self._input[TOP] = entropy
        self._input[TOP + 1] = scaled_position(position)
        np.dot(self._first, self._input, out=self._before)
        np.maximum(self._before, 0.0, out=self._before)
        return sigmoid(float(np.dot(self._second, self._hidden)))

    def score_chain(self, state: DraftState) -> np.ndarray:
        """See :class:`~decoding.lookahead.heads.Head`."""
        positions = range(state.start, state.position)
        return np.array([self.score(*one) for one in zip(state.top10, state.entropy, positions, strict=True)])


def as_logs(top10: np.ndarray) -> np.ndarray:
    """Logarithms of probabilities, for heads that read them."""
    return np.log(np.maximum(top10, LEAST))


class Disco(LookaheadPolicy):
    """Drafts while the classifier accepts the last drafted token, up to SL_max."""

    name = "disco"
    needs = DiscoHead.needs

    def __init__(self, threshold: float, head: DiscoHead) -> None:
        self._threshold = threshold
        self._head = head
        self._sure = sure_at(head.tuned, threshold)  # a token of at least this p is accepted without the classifier
        self.cap = int(head.tuned["sl_max"])

    def should_draft(self, state: DraftState) -> bool:
        n = len(state.tokens)
        if n == 0:
            self.score = self.threshold = None
            state.sure = self._sure
            return True
        trusted = state.p[-1] >= self._sure
        score: float | None = None  # of a trusted token: not evaluated; a trace takes it from the chain
        if state.known:
            score = state.known[-1]
        elif not trusted:
            score = self._head.score(state.top10[-1], state.entropy[-1], state.start + n - 1)
        self.score, self.threshold = score, self._threshold
        return trusted or (score is not None and score >= self._threshold)


def scaled_position(position: int) -> float:
    """ln(1 + i), which keeps positions of long texts within the training range."""
    return math.log1p(position)


def sigmoid(logit: float) -> float:
    """1 / (1 + e^-logit), without overflow."""
    return 1.0 / (1.0 + math.exp(-logit)) if logit > -700.0 else 0.0


def sure_at(tuned: Mapping[str, Any], threshold: float) -> float:
    """``sure`` at this threshold: that of the next one from there on for which ``fit`` found it, else infinite.

    A higher threshold stops more often, so that its ``sure`` is the stricter one.
    """
    return min((sure for known, sure in tuned.get("sure_at", ()) if known >= threshold), default=math.inf)


SPEC = PolicySpec(
    Disco,
    title="DISCO",
    spelled="DynamIc SpeCulation lookahead Optimization",
    caption="after each guess, a classifier decides: go on or check",
    source="DISCO (Mamou et al. 2024)",
    order=80,
    argument=Argument(
        "threshold",
        0.0,
        1.0,
        "disco:0.5",
        sweep=TWENTIETHS,
        tuned=(*TWENTIETHS, 0.97, 0.98, 0.99),
        effect="stops below {}",
    ),
    score=Score(
        "The score is the classifier's probability that the guess holds: below the line, the policy stops and checks."
    ),
    head_from=DiscoHead,
)
