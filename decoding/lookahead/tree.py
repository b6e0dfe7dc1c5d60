"""tree: a budget of guesses, which branch where the draft is unsure."""

from __future__ import annotations

from .base import SL_CAP_LEARNED, TreePolicy
from .spec import Argument, PolicySpec


class Tree(TreePolicy):
    """Guesses the ``budget`` tokens whose paths are likeliest to be accepted."""

    name = "tree"
    needs = frozenset({"p"})

    def __init__(self, budget: int) -> None:
        self.cap = budget


SPEC = PolicySpec(
    Tree,
    title="Tree",
    caption="guesses {argument} per check, likeliest to hold first: several for one place where the draft is unsure",
    source="EAGLE-2 (Li et al. 2024), OPT-Tree (Wang et al. 2024)",
    order=84,
    argument=Argument(
        "number of guesses",
        1,
        SL_CAP_LEARNED,
        "tree:8",
        whole=True,
        required=True,
        refused={"0": "tree:0 never guesses, which is plain decoding: use the lane autoregressive instead."},
    ),
    offered=("tree:8",),
    branches=True,
)
