"""A fixed speculation lookahead (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from .base import SL_CAP, PlannedPolicy
from .spec import Argument, PolicySpec


class Static(PlannedPolicy):
    """Always drafts ``sl`` tokens, then verifies."""

    name = "static"

    def __init__(self, sl: int) -> None:
        self.sl = sl

    def planned(self, start: int) -> int:
        return self.sl


SPEC = PolicySpec(
    name="static",
    title="Static",
    caption="always guesses {argument}, then checks",
    source="Leviathan et al. 2023, Chen et al. 2023",
    make=Static,
    order=10,
    argument=Argument(
        "SL",
        1,
        SL_CAP,
        "static:5",
        whole=True,
        required=True,
        sweep=tuple(range(1, SL_CAP + 1)),
        refused={"0": "static:0 never drafts, which is plain decoding: use the lane autoregressive instead."},
    ),
    offered=("static:3", "static:5", "static:8"),
    evaluated=("static:5",),
)
