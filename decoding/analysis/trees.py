"""What-if for trees: how they grow along a known text, and where a policy stops that.

The next step of a tree is always the likeliest one (:mod:`decoding.loop.growing`), so that a policy decides only where
the growth ends. So the growth from each place of a text, recorded once up to TREE_CAP guesses, holds the trees of all
policies. This is exact for drafts that read the text alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field, FiniteFloat

from ..errors import UserError
from ..lookahead.base import TREE_CAP, DraftState, LaneContext, TreePolicy
from ..records.trace import Chain, Costs
from .whatif import Simulated

Steps = Annotated[int, Field(ge=-1, lt=TREE_CAP)]


@dataclass(slots=True)
class Growth:
    """The steps of a tree from one place of a text, the likeliest first (parallel lists).

    ``chances``: about how likely it is that the path to where each step leads is accepted; ``parents``: the guess that
    a step's own guess follows, -1 for the text; None for a step that reads a guess, or the text, to continue below it;
    ``hits``: the guesses that the target accepts, by their numbers.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    chances: list[FiniteFloat]
    parents: list[Steps | None]
    hits: list[Steps]


def simulate_trees(
    chain: Chain, growths: list[Growth], costs: Costs, policy: TreePolicy, max_new_tokens: int
) -> Simulated:
    """The iterations of ``policy`` on the chain's text, and their cost; see :func:`.whatif.simulate`.

    ``growths[start]`` is that from the output position ``start``. Raises UserError for a policy whose trees may be
    larger than what was recorded.
    """
    if policy.cap > TREE_CAP:
        raise UserError(f"Trees are recorded up to {TREE_CAP} guesses: the policy {policy.name} may grow larger ones.")
    policy.reset(LaneContext(chain.draft, costs, max_new_tokens))
    n_tokens, start, cost = len(chain.target), 0, 0.0
    iterations, steps = [], []
    state = DraftState()
    while start < n_tokens:
        state.begin(start)
        reads = _grow(growths[start], policy, state)
        drafted = len(state.tokens)
        path = [hit for hit in growths[start].hits if hit < drafted]
        policy.observe(drafted, len(path))
        policy.observe_tree(state, path)
        iterations.append((start, drafted, len(path)))
        steps.append(reads)
        cost += costs.iteration(drafted, chain.draft, policy.name, reads)
        start += len(path) + 1
    plain = n_tokens * costs.iteration(0, None)
    return Simulated(iterations, n_tokens, cost, plain / cost if cost else 1.0, steps)


def _grow(growth: Growth, policy: TreePolicy, state: DraftState) -> int:
    """Fills ``state`` with the guesses up to where ``policy`` or its cap stops. Returns the number of draft passes."""
    parents: list[int] = []
    state.parents = parents
    reads = 0
    for chance, parent in zip(growth.chances, growth.parents, strict=True):
        if len(parents) >= policy.cap:
            break
        if not (policy.should_read(state, chance) if parent is None else policy.should_guess(state, chance)):
            break
        if parent is None:
            reads += 1
        else:
            parents.append(parent)
            state.tokens.append(0)  # which token it is matters to no policy
    return reads
