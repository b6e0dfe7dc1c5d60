"""A threshold on the draft's confidence: transformers' dynamic lookahead with a fixed threshold."""

from __future__ import annotations

from .base import ThresholdPolicy
from .spec import TWENTIETHS, Argument, PolicySpec, Score

DEFAULT_THRESHOLD = 0.4  # transformers' assistant_confidence_threshold


class Confidence(ThresholdPolicy):
    """Verifies once the draft's probability of its last token falls below the threshold.

    Source: transformers, ``ConfidenceCriteria``.
    """

    name = "confidence"
    needs = frozenset({"p"})


SPEC = PolicySpec(
    Confidence,
    title="Confidence",
    caption="keeps guessing while the small model is at least {argument} sure of its guess",
    source="transformers' dynamic lookahead, with a fixed threshold",
    order=50,
    argument=Argument("threshold", 0.0, 1.0, "confidence:0.4", default=DEFAULT_THRESHOLD, sweep=TWENTIETHS),
    offered=("confidence:0.4",),
    score=Score(
        "The score is the small model's own probability of its guess: below the line, the policy stops and checks.",
        along=lambda guesses: guesses.p,
    ),
)
