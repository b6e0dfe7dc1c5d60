"""costtree: guess deeper or wider while the guess is expected to save more time than it costs.

As for :mod:`.costaware`, let lam be the time per token in the long run, in target passes. A guess that is accepted
with probability S saves S lam. A further guess at a place that the draft has read costs one more row of verification,
the rise of v, and a decision; reading a guess, to continue below it, costs a draft step (c) as well, and saves S r lam,
where r is how often one of the guesses for a place holds. The likeliest step comes first, so that after a guess that
does not pay no later one does; where reading does not pay, further guesses at the places that were read still may.

S is about how likely the path is to be accepted, by the draft. r and lam follow from the lane itself, lam by the
measured cost curves, so nothing needs to be fitted to a draft. Before anything was verified lam is that of the best
chain of fixed length whose guesses hold with the probability EXPECTED. Where verification is dear the tree becomes a
chain, where it is nearly free it widens.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..records.trace import Costs
from .base import SL_CAP, TREE_CAP, DraftState, LaneContext, TreePolicy
from .costaware import rises_of
from .spec import PolicySpec
from .static import expected_tokens

RECENT = 0.05  # weight of the latest place in r, and of the latest iteration in lam
EXPECTED = 0.7  # r before anything was verified


class CostTree(TreePolicy):
    """Grows a tree by the rule of the module."""

    name = "costtree"
    needs = frozenset({"p"})
    cap = TREE_CAP

    def reset(self, context: LaneContext) -> None:
        assert context.draft is not None, "a tree is drafted by a draft"
        costs, self._draft = context.costs, context.draft
        self._costs = costs
        self._rises = rises_of(costs)
        self._decision = costs.decision.get(self.name, 0.0)
        self._step = costs.draft_step[context.draft]
        self._first = costs.start(1, context.draft) + max(0.0, costs.verify(2) - costs.verify(1))
        self._hits = EXPECTED
        self._spent, self._gained = _expected_iteration(costs, context.draft)  # of the mean iteration

    def should_read(self, state: DraftState, chance: float) -> bool:
        rise = self._rise(len(state.tokens)) if state.tokens else self._first  # the first guess pays for all others
        return self._is_worth(chance * self._hits, self._step + self._decision + rise)

    def should_guess(self, state: DraftState, chance: float) -> bool:
        if not state.tokens:
            return True  # the draft has read the text for it
        return self._is_worth(chance, self._decision + self._rise(len(state.tokens)))

    def observe_tree(self, state: DraftState, path: Sequence[int]) -> None:
        parents = state.parents or []
        if not parents:  # counts as a hit, so that a policy that has given up guesses again some time
            self._hits += RECENT * (1.0 - self._hits)
        for place, hit in zip((-1, *path), (*path, None)):
            if place in parents:
                self._hits += RECENT * ((hit is not None) - self._hits)
        spent = self._costs.iteration(len(parents), self._draft, self.name, state.reads)
        self._spent += RECENT * (spent - self._spent)
        self._gained += RECENT * (len(path) + 1 - self._gained)

    def _rise(self, n: int) -> float:
        """What verifying one more guess after ``n`` costs."""
        return max(0.0, self._rises[min(n, len(self._rises)) - 1])

    def _is_worth(self, chance: float, cost: float) -> bool:
        self.score, self.threshold = chance, min(1.0, cost * self._gained / self._spent)
        return self.score > self.threshold


def _expected_iteration(costs: Costs, draft: str) -> tuple[float, float]:
    """Cost and tokens of an iteration of the best static SL, 0 included, if guesses hold with the chance EXPECTED."""
    tries = [(costs.iteration(n, draft if n else None), expected_tokens(EXPECTED, n)) for n in range(SL_CAP + 1)]
    return min(tries, key=lambda one: one[0] / one[1])


SPEC = PolicySpec(
    CostTree,
    title="Cost tree",
    caption="keeps guessing, deeper or wider, while one more guess is expected to save more time than it costs",
    source="ours",
    order=104,
    branches=True,
)
