"""A threshold on the entropy of the draft's distribution (SVIP)."""

from __future__ import annotations

from math import sqrt

from .base import DraftState, LookaheadPolicy
from .spec import TWENTIETHS, Argument, PolicySpec, Score

DEFAULT_THRESHOLD = 0.3
GAMMA = 0.15


class Entropy(LookaheadPolicy):
    """Checks once sqrt(0.15 * H) exceeds ``h``; H is the entropy (nats) of the draft's distribution for the last token.

    Source: SVIP (published code). 1 - sqrt(gamma * H) estimates the acceptance probability: with the unknown
    cross-entropy in place of H it would be a lower bound.
    """

    name = "entropy"
    needs = frozenset({"entropy"})
    stops_above = True

    def __init__(self, h: float = DEFAULT_THRESHOLD) -> None:
        self._threshold = h

    def should_draft(self, state: DraftState) -> bool:
        if not state.entropy:
            self.score = self.threshold = None
            return True
        self.score = sqrt(GAMMA * max(state.entropy[-1], 0.0))
        self.threshold = self._threshold
        return self.score <= self._threshold


SPEC = PolicySpec(
    name="entropy",
    title="Entropy",
    caption="guesses on while the small model's own choice is clear (low entropy)",
    source="SVIP (its published code)",
    make=Entropy,
    order=60,
    argument=Argument("threshold", 0.0, 1.0, "entropy:0.3", default=DEFAULT_THRESHOLD, sweep=TWENTIETHS),
    offered=("entropy",),
    evaluated=("entropy",),
    score=Score(
        "The score is derived from the entropy of the small model's choice: past the line, it stops and checks.",
        along=lambda guesses: [-entropy for entropy in guesses.entropy],
    ),
)
