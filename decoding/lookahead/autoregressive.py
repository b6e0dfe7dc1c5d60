"""Plain decoding: never draft."""

from __future__ import annotations

from .base import DraftState, LookaheadPolicy


class Autoregressive(LookaheadPolicy):
    """One target pass for every token."""

    name = "autoregressive"

    def planned(self, start: int) -> int:
        return 0

    def should_draft(self, state: DraftState) -> bool:
        return False
