"""Plain decoding: never draft."""

from __future__ import annotations

from .base import PlannedPolicy
from .spec import PolicySpec


class Autoregressive(PlannedPolicy):
    """One target pass per token."""

    name = "autoregressive"

    def planned(self, start: int) -> int:
        return 0


SPEC = PolicySpec(
    Autoregressive,
    title="Plain",
    caption="the big model alone, one token per pass",
    source="plain decoding",
    order=0,
    plain=True,
)
