"""Oracles: rules that were told beforehand where the draft's guesses fail. Ceilings, not usable."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..trace import Costs
from .base import DraftState, LaneContext, LookaheadPolicy


class Oracle(LookaheadPolicy):
    """Draft up to the first mismatch and no further (DISCO, section 3: the oracle).

    With ``cap`` at most so many tokens an iteration. The pre-pass that told it is in no lane's time.
    """

    name = "oracle"

    def __init__(self, cap: int | None = None) -> None:
        self.cap = cap
        self._holds: Callable[[int], int] = lambda start: 0

    def reset(self, context: LaneContext) -> None:
        assert context.holds is not None, "an oracle needs a recorded chain"
        self._holds = context.holds

    def planned(self, start: int) -> int:
        return self._holds(start)

    def should_draft(self, state: DraftState) -> bool:
        return state.n_drafted < self.planned(state.start)


class BestOracle(Oracle):
    """The cheapest split of the known text into iterations, under the run's cost curves."""

    def __init__(self) -> None:
        super().__init__()
        self._split: list[int] = []

    def reset(self, context: LaneContext) -> None:
        super().reset(context)
        n_tokens = context.n_tokens if context.n_tokens is not None else context.max_new_tokens
        holds = [self._holds(start) for start in range(n_tokens)]
        self._split = best_split(holds, context.costs, context.draft, self.name)

    def planned(self, start: int) -> int:
        return self._split[start] if start < len(self._split) else 0


def best_split(holds: list[int], costs: Costs, draft: str | None, policy: str | None = "oracle") -> list[int]:
    """SL to choose at every output position so that the whole text costs least: dynamic programming.

    With F(i) the least cost of the tokens from position i on (in units of one target pass over one token),
    F(T) = 0 and F(i) = min over n of iteration(n) + F(i + n + 1), where 0 <= n <= min(holds[i], T - i - 1).

    Args:
        holds: [T] how many guesses hold from each position on.
        costs: the run's cost curves; ``draft`` and ``policy`` name their entries.

    Returns:
        [T] the minimising n at each position; the shortest where several cost the same.
    """
    total = len(holds)
    longest = max((min(h, total - i - 1) for i, h in enumerate(holds)), default=0)
    price = np.array([costs.iteration(n, draft, policy) for n in range(longest + 1)])
    least = np.zeros(total + 1)
    split = [0] * total
    for start in range(total - 1, -1, -1):
        most = min(holds[start], total - start - 1)
        choices = price[: most + 1] + least[start + 1 : start + most + 2]
        split[start] = int(choices.argmin())
        least[start] = choices[split[start]]
    return split
