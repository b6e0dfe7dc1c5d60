"""Oracles: rules that were told beforehand where the draft's guesses fail. Ceilings, not usable."""

from __future__ import annotations

from collections.abc import Callable

from ..split import best_split
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
        wanted = context.max_new_tokens
        n_tokens = wanted if context.n_tokens is None else context.n_tokens
        self._split = best_split(
            self._holds, n_tokens, lambda n: context.costs.iteration(n, context.draft, self.name), wanted
        )

    def planned(self, start: int) -> int:
        return self._split[start] if start < len(self._split) else 0
