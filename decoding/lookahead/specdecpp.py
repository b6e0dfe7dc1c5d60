"""SpecDec++: stop when some drafted token is probably rejected (Huang et al. 2024, arXiv 2405.19715).

A head on the draft's last hidden state gives the probability that the token which was that state's *input* is accepted:
D residual blocks x + SiLU(W x + b) that share their weights, then a linear layer to two classes. With ``cum`` the
product of these probabilities, stop once 1 - cum > h. The alignment is that of the published code: after Y_k was
sampled only Y_1 .. Y_{k-1} have been an input, so Y_k counts as certain; at least two tokens are drafted. The published
maximum SL is 20; here it is tuned with the threshold and may be larger.

Our addition: a head may also see the token's *lead* (:data:`.heads.LEADS`), in its last layer. The state of a large
draft still encodes how sure the draft was of the token that it then read; that of a draft with few layers does not.
Heads with and without it are trained, and validation chooses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .base import SL_CAP, DraftState, LaneContext, LookaheadPolicy
from .disco import sigmoid
from .heads import HIGHEST, LEADS, Architecture, Weights, leads_of
from .spec import TWENTIETHS, Argument, PolicySpec, Score

HINGES = (1.0, 3.0, HIGHEST)  # nats: the last layer sees min(lead, hinge) for each
DEEPEST = 16  # blocks of a head
SHORTEST = 2  # published: 2 <= SL <= 20; fitting may raise the upper bound


class SpecDecHead:
    """D x [x + SiLU(W x + b)] with shared W, b, then a linear layer; two classes are one logit's difference."""

    def __init__(self, weights: Weights, architecture: Architecture, tuned: dict[str, Any]) -> None:
        """``weights``, float32: "block" [d, d], "bias" [d], "out" [d + 1] with its bias last, and "scale" [1], by which
        states are divided. For the ``architecture``'s "depth" 0 the head is linear and has no block. If it sees the
        lead from the "feature" (else None), "lead" [3] are the weights of its hinges.
        """
        self.tuned = tuned
        seen = architecture["feature"]
        self._lead = weights["lead"].reshape(len(HINGES)).tolist() if seen else None
        self.feature = seen or "p"
        self._lead_of = LEADS[self.feature]
        self.needs = frozenset({"hidden"} if self._lead is None else {"hidden", self.feature})
        self._bias, self._depth = weights["bias"], int(architecture["depth"])
        if not 0 <= self._depth <= DEEPEST:
            raise ValueError(f"a depth of {self._depth}")
        size = len(self._bias)
        self._block = weights["block"].reshape(size, size) if self._depth else np.empty((0, 0), dtype=np.float32)
        out = weights["out"].reshape(size + 1)
        self._out, self._out_bias = np.ascontiguousarray(out[:-1]), float(out[-1])
        self._inverse = np.float32(1.0 / max(weights["scale"].item(), 1e-6))
        self._x, self._z, self._gate = (np.empty(size, dtype=np.float32) for _ in range(3))

    def score(self, hidden: np.ndarray, value: float = 0.0) -> float:
        """Acceptance probability of the token that was the input of ``hidden`` [d]; no allocation. ``value``: of the
        head's feature.
        """
        x, z, gate = self._x, self._z, self._gate
        np.multiply(hidden, self._inverse, out=x)
        for _ in range(self._depth):
            np.dot(self._block, x, out=z)
            z += self._bias
            z *= 0.5  # SiLU(2z) = z (1 + tanh z), which cannot overflow
            np.tanh(z, out=gate)
            gate += 1.0
            z *= gate
            x += z
        return sigmoid(float(np.dot(self._out, x)) + self._out_bias + self._of_lead(value))

    def _of_lead(self, value: float) -> float:
        if self._lead is None:
            return 0.0
        lead = self._lead_of(value)
        return sum(weight * min(lead, hinge) for weight, hinge in zip(self._lead, HINGES, strict=True))

    def score_chain(self, state: DraftState) -> np.ndarray:
        """See :class:`~decoding.lookahead.heads.Head`."""
        return np.array([self.score(*one) for one in zip(state.hidden, getattr(state, self.feature), strict=True)])


def hinged(feature: str, values: Iterable[float]) -> np.ndarray:
    """[n] values of ``feature`` -> [n, 3]: their leads up to each of HINGES."""
    return np.minimum(leads_of(feature, values)[:, None], np.array(HINGES)).astype(np.float32)


class SpecDecPlusPlus(LookaheadPolicy):
    """Stops when 1 - (product of acceptance probabilities) exceeds the threshold."""

    name = "specdecpp"
    stops_above = True

    def __init__(self, threshold: float, head: SpecDecHead) -> None:
        self._threshold = threshold
        self._head = head
        self.needs = head.needs
        self.cap = int(head.tuned.get("sl_max", SL_CAP))
        if self.cap < SHORTEST:
            raise ValueError(f"its SL_max is {self.cap}")

    def reset(self, context: LaneContext) -> None:
        self._cum = 1.0

    def should_draft(self, state: DraftState) -> bool:
        n = len(state.tokens)
        if n < SHORTEST:
            self._cum = 1.0
            self.score = self.threshold = None
            return True
        self._cum *= state.known[n - 2] if state.known else self._judge(state, n - 2)
        self.score = 1.0 - self._cum
        self.threshold = self._threshold
        return self.score <= self._threshold

    def _judge(self, state: DraftState, index: int) -> float:
        values: list[float] = getattr(state, self._head.feature)
        return self._head.score(state.hidden[index], values[index] if values else 0.0)  # empty if the head sees none


SPEC = PolicySpec(
    SpecDecPlusPlus,
    title="SpecDec++",
    spelled="speculative decoding with adaptive candidate lengths",
    caption="keeps guessing while the chance that a guess has failed stays below a threshold",
    source="SpecDec++ (Huang et al. 2024); ours may also see how sure the draft was",
    order=90,
    argument=Argument(
        "threshold",
        0.0,
        1.0,
        "specdecpp:0.5",
        words=("auto",),  # as without an argument
        sweep=TWENTIETHS,
        tuned=(*TWENTIETHS, 0.97),
        effect="stops above {}",
    ),
    score=Score(
        "The score is the probability that at least one guess before the last one fails: above the line, the policy "
        "stops and checks."
    ),
    head_from=SpecDecHead,
)
