"""A fixed speculation lookahead (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from .base import DraftState, LookaheadPolicy


class Static(LookaheadPolicy):
    """Always draft ``sl`` tokens, then check."""

    name = "static"

    def __init__(self, sl: int) -> None:
        self.sl = sl

    def planned(self, start: int) -> int:
        return self.sl

    def should_draft(self, state: DraftState) -> bool:
        return state.n_drafted < self.sl
