"""Oracles: policies that know in advance where the draft's guesses fail. Upper bounds, not usable in practice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..records.trace import Chain
from .base import LaneContext, PlannedPolicy
from .spec import Argument, PolicySpec


class Oracle(PlannedPolicy):
    """Drafts up to the first mismatch and no further (DISCO, section 3: the oracle). With a number as its argument at
    most that many tokens per iteration; with "best" the cheapest split of the known text into iterations, under the
    run's cost curves.

    The time of the pre-pass is not part of any lane's time.
    """

    name = "oracle"

    def __init__(self, argument: int | str | None = None) -> None:
        self.cap = argument if isinstance(argument, int) else None
        self._is_best = argument == "best"

    def reset(self, context: LaneContext) -> None:
        chain = context.known_chain()
        self._planned: Callable[[int], int] = chain.holds
        if self._is_best:
            cost = partial(context.costs.iteration, draft=context.draft, policy=self.name)
            split = best_split(chain, cost, context.max_new_tokens)
            self._planned = lambda start: split[start] if start < len(split) else 0

    def planned(self, start: int) -> int:
        return self._planned(start)


def best_split(chain: Chain, cost: Callable[[int], float], wanted: int) -> list[int]:
    """The SL at every output position that makes the rest of the text cheapest.

    Dynamic programming from the end of the text: with ``f(n_tokens) = 0``,

        f(s) = min over n <= holds(s) of  cost(n) + f(s + n + 1)

    where an iteration of n right guesses yields n + 1 tokens. Drafting beyond ``holds(s)`` only costs time, so it is
    not considered. ``n`` is also at most ``wanted - s - 1``, as in the loop.

    Args:
        cost: SL -> cost of an iteration (any unit).
        wanted: the token limit; the text may have ended before it (end of sequence).

    Returns:
        ``plan[start]``, one entry per token. A lane that follows it from 0 has the lowest possible cost.
    """
    n_tokens = len(chain.target)
    most = [max(0, min(chain.holds(start), wanted - start - 1)) for start in range(n_tokens)]
    costs = np.array([cost(n) for n in range(max(most, default=0) + 1)])
    rest = np.zeros(n_tokens + 2)  # rest[s]: f(s); an end of text within the accepted tokens leads to n_tokens + 1
    plan = [0] * n_tokens
    for start in range(n_tokens - 1, -1, -1):
        totals = costs[: most[start] + 1] + rest[start + 1 : start + most[start] + 2]
        plan[start] = int(totals.argmin())
        rest[start] = totals[plan[start]]
    return plan


def _caption(argument: str | None) -> str:
    if argument == "best":
        return "knows where guesses fail and what everything costs: the best chain of this draft's guesses, not usable"
    capped = f", and guesses at most {argument}" if argument else ""
    return f"knows where guesses fail{capped}: for comparison, not usable"


SPEC = PolicySpec(
    Oracle,
    title="Oracle",
    caption=_caption,
    source="DISCO (Mamou et al. 2024); oracle:best is ours",
    order=110,
    argument=Argument("oracle's cap", 1, 10_000, "oracle:20", whole=True, words=("best",)),
    offered=("oracle", "oracle:best"),
    foresees=True,
)
