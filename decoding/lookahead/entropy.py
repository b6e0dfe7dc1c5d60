"""A threshold on the entropy of the draft's distribution (SVIP)."""

from __future__ import annotations

from math import sqrt

from .base import ThresholdPolicy
from .spec import TWENTIETHS, Argument, PolicySpec, Score

DEFAULT_THRESHOLD = 0.3
GAMMA = 0.15


class Entropy(ThresholdPolicy):
    """Verifies once sqrt(0.15 * H) exceeds the threshold; H: entropy (nats) of the draft's choice of the last token.

    Source: SVIP (published code). 1 - sqrt(gamma * H) estimates the acceptance probability, whose lower bound has half
    of the unknown cross-entropy in place of gamma * H.
    """

    name = "entropy"
    needs = frozenset({"entropy"})
    stops_above = True

    def judge(self, value: float) -> float:
        return sqrt(GAMMA * max(value, 0.0))


SPEC = PolicySpec(
    Entropy,
    title="Entropy",
    caption="keeps guessing while the small model's choice is clear (low entropy)",
    source="SVIP (its published code)",
    order=60,
    argument=Argument("threshold", 0.0, 1.0, "entropy:0.3", default=DEFAULT_THRESHOLD, sweep=TWENTIETHS),
    score=Score(
        "The score is derived from the entropy of the small model's choice. Past the line, the policy stops and "
        "checks.",
        along=lambda guesses: [-entropy for entropy in guesses.entropy],
    ),
)
