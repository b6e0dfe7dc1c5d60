"""Drafting a tree of guesses, best first."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count

from ..lookahead.base import DraftState, TreePolicy
from ..records.trace import StopReason
from .acceptance import Draws, Siblings
from .clock import DRAFT, POLICY, Clock
from .drafting import DraftSource

Decision = tuple[float | None, float | None]  # a policy's score and threshold


def grow_tree(
    draft: DraftSource,
    policy: TreePolicy,
    state: DraftState,
    most: int,
    deepest: int,
    bound: StopReason,
    ends: frozenset[int],
    clock: Clock,
) -> tuple[StopReason, list[Decision]]:
    """Fills ``state`` with a tree of at most ``most`` guesses and at most ``deepest`` below each other.

    The next step is always the likeliest one: a further guess at a place that the draft has read, or reading a guess to
    continue below it. As the chance of a path falls with each guess, this finds the likeliest ``most`` paths: the tree
    that EAGLE-2 (Li et al. 2024) and OPT-Tree (Wang et al. 2024) aim at, which take the draft's probability for that
    chance.

    If the policy refuses to read a guess, the tree grows on from what has been read; the first guess that it refuses
    ends the tree. Returns why it stopped (``bound`` if at ``most``), and the policy's decision before each guess.
    """
    parents: list[int] = []
    state.parents = parents
    reach, depth = {-1: 1.0}, {-1: 0}  # by node: the chance that its path is accepted, and the length of that
    frontier: list[tuple[float, int, int, Siblings | None]] = []  # without siblings: to be read
    decisions: list[Decision] = []
    order = count()  # of equally likely steps the first
    exhausted: StopReason = "limit"

    def consider(chance: float, node: int, siblings: Siblings | None = None) -> None:
        if chance > 0.0:
            heappush(frontier, (-chance, next(order), node, siblings))

    consider(1.0 if deepest > 0 else 0.0, -1)
    while frontier and len(parents) < most:
        less, _, node, siblings = heappop(frontier)
        more = policy.should_read(state, -less) if siblings is None else policy.should_guess(state, -less)
        decisions[len(parents) :] = [(policy.score, policy.threshold)]
        clock.lap(POLICY)
        if not more and siblings is not None:  # no later guess is likelier
            return "policy", decisions
        if not more:
            exhausted = "policy"
            continue
        state.steps.append((siblings is None, node, -less))
        if siblings is None:
            siblings = draft.read_node(state, node)
        else:
            token, held = siblings.draw()
            child = len(parents)
            state.tokens.append(token)
            parents.append(node)
            reach[child], depth[child] = reach[node] * held, depth[node] + 1
            if token not in ends and depth[child] < deepest:
                consider(reach[child], child)
        consider(reach[node] * siblings.chance, node, siblings)
        clock.lap(DRAFT)
    return bound if frontier else exhausted, decisions


def in_order_of_text(
    state: DraftState, path: Sequence[int], decisions: list[Decision], draws: Draws
) -> tuple[list[int], list[int], list[Decision], Draws]:
    """Tokens, parents, decisions and draws of a tree with the accepted ``path`` first, the others as they were drafted.

    So the text is found in the first guesses, in a tree as in a chain.
    """
    parents = state.parents or []
    order = [*path, *sorted(set(range(len(parents))) - set(path))]
    place = {-1: -1} | {node: index for index, node in enumerate(order)}
    return (
        [state.tokens[node] for node in order],
        [place[parents[node]] for node in order],
        decisions[:1] + [decisions[node + 1] for node in order if node + 1 < len(decisions)],
        None if draws is None else [draws[node] for node in order],
    )
