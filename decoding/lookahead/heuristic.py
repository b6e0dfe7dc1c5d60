"""The schedule "heuristic" of transformers' assisted generation."""

from __future__ import annotations

from .base import SL_CAP, LaneContext, PlannedPolicy
from .spec import PolicySpec

FIRST_SL = 5


class Heuristic(PlannedPolicy):
    """SL + 2 after an iteration whose drafts were all accepted, otherwise SL - 1, at least 1.

    Source: transformers, ``AssistedCandidateGenerator.update_candidate_strategy``. There the SL is unbounded; here it
    stays within the cap, which the loop would apply anyway.
    """

    name = "heuristic"

    def reset(self, context: LaneContext) -> None:
        self.sl = FIRST_SL

    def planned(self, start: int) -> int:
        return self.sl

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        if n_drafted == 0:
            return  # the limit left no room to draft: nothing to learn
        self.sl = min(self.sl + 2, SL_CAP) if n_accepted == n_drafted else max(1, self.sl - 1)


SPEC = PolicySpec(
    Heuristic,
    title="Heuristic",
    caption="two more guesses after an iteration in which all held, one fewer otherwise",
    source="transformers' heuristic schedule",
    order=20,
)
