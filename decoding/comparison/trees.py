"""How a draft's tree of guesses grows from each place of a known text: all that any policy for trees can ever see."""

from __future__ import annotations

from collections.abc import Callable

from ..analysis.trees import Growth
from ..errors import Cancelled
from ..lookahead.base import TREE_CAP, DraftState, TreePolicy
from ..loop.acceptance import Siblings
from ..loop.clock import CpuClock
from ..loop.growing import grow_tree
from .chain import start_along
from .prepare import Prepared, make_draft


class _Watcher(TreePolicy):
    """Grows on and notes the steps."""

    name = "watcher"
    needs = frozenset({"p"})

    def __init__(self) -> None:
        self.reads: list[bool] = []
        self.chances: list[float] = []

    def should_read(self, state: DraftState, chance: float) -> bool:
        return self._note(True, chance)

    def should_guess(self, state: DraftState, chance: float) -> bool:
        return self._note(False, chance)

    def _note(self, reads: bool, chance: float) -> bool:
        self.reads.append(reads)
        self.chances.append(chance)
        return True


def grow_along(
    prepared: Prepared,
    draft: str,
    output: list[int],
    cancelled: Callable[[], bool] = lambda: False,
    cap: int = TREE_CAP,
) -> list[Growth]:
    """The growth from each place of ``output`` (ids), the target's own text, with the same steps as the live loop, up
    to ``cap`` guesses. Raises Cancelled.
    """
    source = make_draft(prepared.pair, draft, prepared.rule, frozenset({"p"}))
    states = start_along(source, prepared.prompt, output, prepared.pair.target)
    was_read: list[int] = []
    read_node = source.read_node

    def noted(state: DraftState, node: int) -> Siblings:
        was_read.append(node)
        return read_node(state, node)

    source.read_node = noted  # type: ignore[method-assign]
    found, clock = [], CpuClock()
    clock.begin()
    for start in range(len(output)):
        if cancelled():
            raise Cancelled
        state, watcher = DraftState(text=[*prepared.prompt.ids, *output[:start]]), _Watcher()
        state.begin(start)
        length = len(state.text)
        room = min(prepared.pair.target.max_length - length, source.max_length - length + 1)
        deepest = prepared.limits.max_new_tokens - start - 1
        most = max(0, min(cap, room))
        grow_tree(source, watcher, state, most, deepest, "cap", prepared.limits.ends, clock)
        read, guessed = iter(was_read), iter(state.parents or [])
        nodes = [next(read if reads else guessed) for reads in watcher.reads]
        found.append(Growth(watcher.reads, nodes, watcher.chances, _hits(state, output[start:])))
        was_read.clear()
        source.observe(0, tuple(layer[start : start + 1] for layer in states))
        source.forget(length)
    return found


def _hits(state: DraftState, text: list[int]) -> list[int]:
    """The guesses on the path of the tree that is the ``text`` after it."""
    nodes = {(parent, token): node for node, (parent, token) in enumerate(zip(state.parents or [], state.tokens))}
    hits: list[int] = []
    for token in text:
        node = nodes.get((hits[-1] if hits else -1, token))
        if node is None:
            break
        hits.append(node)
    return hits
