"""What a draft proposes in one iteration: a chain of tokens or, where guesses branch, a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

# The target's greedy choice is its likeliest token, so that a draft's first guess holds more often than its probability
# says, and its second one less often. At this power of the probabilities the target's choices are likeliest: at 1.6 to
# 1.75 for the chat model's feature draft (18,958 guesses), at 1.75 for that of three layers, 1.5 for that of two (734).
SHARPNESS = 1.75


@dataclass(slots=True)
class Proposal:
    """Tokens that continue the text; the target reads all of them in one pass.

    ``parents`` is None for a chain, in which each token follows the one before it. In a tree ``parents[i]`` is the
    index of the token that token i follows, always less than i, or -1 if it follows the text. ``p[i]`` is the draft's
    probability of token i after the tokens above it, in a chain whose policy needs it.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] | None = None
    p: list[float] = field(default_factory=list)

    @property
    def depths(self) -> list[int]:
        """Number of tokens above each token; 0 for one that follows the text."""
        return depths_of(parents_in(self.parents, len(self.tokens)))


def parents_in(parents: Sequence[int] | None, n: int) -> Sequence[int]:
    """``parents`` of ``n`` nodes; those of a chain (None), the tree in which each node follows the one before it."""
    return range(-1, n - 1) if parents is None else parents


def depths_of(parents: Sequence[int]) -> list[int]:
    """Number of nodes above each node of a tree."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def children_of(parents: Sequence[int]) -> list[list[int]]:
    """The children of each node, and in the last place (index -1) those of the root."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        children[parent].append(node)
    return children


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the top of a tree to ``node``, which is the last; [] for the root, -1."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]
