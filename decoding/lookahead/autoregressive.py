"""Plain decoding: never draft."""

from __future__ import annotations

from .base import DraftState, LookaheadPolicy
from .spec import PolicySpec


class Autoregressive(LookaheadPolicy):
    """One target pass per token."""

    name = "autoregressive"

    def planned(self, start: int) -> int:
        return 0

    def should_draft(self, state: DraftState) -> bool:
        return False


SPEC = PolicySpec(
    name="autoregressive",
    title="Plain",
    caption="the big model alone, one token per pass",
    source="plain decoding",
    make=Autoregressive,
    order=0,
    offered=("autoregressive",),
    evaluated=("autoregressive",),
    plain=True,
)
