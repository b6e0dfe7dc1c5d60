"""A fixed speculation lookahead (Leviathan et al. 2023; Chen et al. 2023), and what it gives in closed form."""

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
    Static,
    title="Static",
    caption="always guesses {argument}, then checks",
    source="Leviathan et al. 2023, Chen et al. 2023",
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


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens per iteration if every guess holds with the same probability: ``(1 - alpha^(gamma+1)) / (1 - alpha)``
    (Leviathan et al. 2023, eq. 1), with ``alpha`` that probability and ``gamma`` the SL.

    It counts the target's own token; ``gamma + 1`` for alpha = 1. Over the time of an iteration it is the throughput
    model of "Decoding Speculative Decoding" (Yan et al. 2024); with free verification, the speedup of Leviathan et al.,
    theorem 3.8, and of DISCO (Mamou et al. 2024), eq. 1.
    """
    return gamma + 1.0 if alpha == 1.0 else (1.0 - alpha ** (gamma + 1)) / (1.0 - alpha)
