"""A threshold on the draft's confidence: transformers' dynamic lookahead with a fixed threshold."""

from __future__ import annotations

from .base import DraftState, LookaheadPolicy

DEFAULT_THRESHOLD = 0.4  # transformers' assistant_confidence_threshold


class Confidence(LookaheadPolicy):
    """Check once the draft's probability of its own last token falls below the threshold.

    The token that fell below is checked all the same. Source: transformers, ``ConfidenceCriteria``.
    """

    name = "confidence"
    needs = frozenset({"p"})

    def __init__(self, threshold: float = DEFAULT_THRESHOLD) -> None:
        self._threshold = threshold

    def should_draft(self, state: DraftState) -> bool:
        if not state.p:
            self.score = self.threshold = None
            return True
        self.score = state.p[-1]
        self.threshold = self._threshold
        return self.score >= self._threshold
