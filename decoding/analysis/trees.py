"""What-if for trees: how they grow along a known text, and where a policy stops that.

The next step of a tree is always the likeliest one (:mod:`decoding.loop.growing`): a policy decides which guesses are
read and where the growth ends. So the growth from each place of a text, recorded once up to TREE_CAP guesses, holds the
trees of all policies. This is exact; only a policy that leaves out reads and guesses on beyond what was recorded has
somewhat smaller trees here than in the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field, FiniteFloat

from ..errors import UserError
from ..lookahead.base import TREE_CAP, DraftState, LaneContext, TreePolicy
from ..records.trace import Chain, Costs
from .whatif import Simulated

Node = Annotated[int, Field(ge=-1, lt=TREE_CAP)]


@dataclass(slots=True)
class Growth:
    """The steps of a tree from one place of a text, the likeliest first (parallel lists).

    ``reads``: whether a step reads a guess, or the text, to continue below it; otherwise it adds a guess. ``nodes``:
    the guess that is read or that the new one follows, -1 for the text. ``chances``: about how likely it is that the
    path to where the step leads is accepted. ``hits``: the guesses that the target accepts, by their numbers.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    reads: list[bool]
    nodes: list[Node]
    chances: list[FiniteFloat]
    hits: list[Node]


def simulate_trees(
    chain: Chain, growths: list[Growth], costs: Costs, policy: TreePolicy, max_new_tokens: int
) -> Simulated:
    """The iterations of ``policy`` on the chain's text, and their cost; see :meth:`.whatif.Replay.simulate`.

    ``growths[start]`` is that from the output position ``start``. Raises UserError for a policy whose trees may be
    larger than what was recorded.
    """
    if policy.cap > TREE_CAP:
        raise UserError(f"Trees are recorded up to {TREE_CAP} guesses: the policy {policy.name} may grow larger ones.")
    policy.reset(LaneContext(chain.draft, costs, max_new_tokens))
    iterations, steps = [], []
    state, start = DraftState(), 0
    while start < len(chain.target):
        state.begin(start)
        path = _grow(growths[start], policy, state)
        drafted = len(state.tokens)
        policy.observe(drafted, len(path))
        policy.observe_tree(state, path)
        iterations.append((start, drafted, len(path)))
        steps.append(state.reads)
        start += len(path) + 1
    return Simulated.priced(iterations, chain, costs, policy.name, steps)


def _grow(growth: Growth, policy: TreePolicy, state: DraftState) -> list[int]:
    """Fills ``state`` with the steps up to where ``policy`` or its cap stops.

    Returns which of its guesses the target accepts.
    """
    parents: list[int] = []
    state.parents = parents
    own = {-1: -1}  # recorded guess -> the one in this tree, which leaves out what follows guesses that were not read
    was_read: set[int] = set()
    recorded = 0
    for reads, node, chance in zip(growth.reads, growth.nodes, growth.chances, strict=True):
        if len(parents) >= policy.cap:
            break
        recorded += not reads
        if reads and node in own:
            if policy.should_read(state, chance):
                was_read.add(node)
                state.steps.append((True, node, chance))
        elif not reads and node in was_read:
            if not policy.should_guess(state, chance):
                break
            own[recorded - 1] = len(parents)
            parents.append(own[node])
            state.tokens.append(0)  # which token it is matters to no policy
    return [own[hit] for hit in growth.hits if hit in own]
