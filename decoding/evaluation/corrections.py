"""The cost of a policy's errors: the same policy with one kind of error corrected with knowledge of the outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..analysis.whatif import Simulated
from ..lookahead.base import DraftState, LaneContext, LookaheadPolicy
from ..lookahead.heads import Head
from ..lookahead.lanes import parse_lane
from ..lookahead.registry import make_policy
from ..records.trace import Costs
from .results import Corrections
from .samples import Sample, simulate_all
from .tables import Entry


class Corrected(LookaheadPolicy):
    """``policy``, but for decisions about drafted tokens that it gets wrong.

    ``too_soon``: it never stops while all that it drafted holds. ``too_late``: it never drafts on after a guess that
    fails. With both it is a perfect classifier of the drafted token.
    """

    def __init__(self, policy: LookaheadPolicy, *, too_soon: bool = False, too_late: bool = False) -> None:
        self.name = policy.name  # its decisions keep their cost
        self.cap = None if too_soon else policy.cap
        self._policy, self._too_soon, self._too_late = policy, too_soon, too_late

    def reset(self, context: LaneContext) -> None:
        self._holds = context.known_holds()
        self._policy.reset(context)

    def planned(self, start: int) -> int | None:
        """As many as ``policy`` plans, up or down to the first guess that fails."""
        n = self._policy.planned(start)
        if n is None:
            return None
        first_failure = self._holds(start) + 1
        if self._too_soon:
            n = max(n, first_failure)
        return min(n, first_failure) if self._too_late else n

    def should_draft(self, state: DraftState) -> bool:
        goes_on = self._policy.should_draft(state)
        if len(state.tokens) <= self._holds(state.start):
            return goes_on or self._too_soon
        return goes_on and not self._too_late

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        self._policy.observe(n_drafted, n_accepted)


def correct_all(
    entries: Sequence[Entry], samples: Sequence[Sample], costs: Costs, heads: Mapping[str, Head] | None
) -> dict[str, Corrections]:
    """:func:`correct` by label, without the policies that make no errors."""
    found = {entry.label: correct(entry.lane, samples, costs, heads) for entry in entries}
    return {label: one for label, one in found.items() if one is not None}


def correct(lane: str, samples: Sequence[Sample], costs: Costs, heads: Mapping[str, Head] | None) -> Corrections | None:
    """Seconds per token of ``lane`` as it is and with what holds it back undone, one at a time.

    None for policies that make no errors of their own: plain decoding and the oracle.
    """
    parsed = parse_lane(lane)
    if parsed.is_plain or parsed.is_oracle:
        return None

    def replayed(wrap: Callable[[LookaheadPolicy], LookaheadPolicy]) -> list[Simulated]:
        return simulate_all(samples, costs, lambda: wrap(make_policy(parsed, heads)))

    def seconds(simulated: Sequence[Simulated], priced: Costs = costs) -> float:
        lengths = (n for one in simulated for _, n, _ in one.iterations)
        total = sum(priced.iteration(n, samples[0].chain.draft, parsed.policy) for n in lengths)
        return total * costs.target_s / sum(one.n_tokens for one in simulated)

    as_it_is = replayed(lambda policy: policy)
    return Corrections(
        as_it_is_s=seconds(as_it_is),
        free_decisions_s=seconds(as_it_is, replace(costs, decision={})),
        free_checks_s=seconds(as_it_is, replace(costs, v=costs.v[:1])),
        never_too_soon_s=seconds(replayed(lambda policy: Corrected(policy, too_soon=True))),
        never_too_late_s=seconds(replayed(lambda policy: Corrected(policy, too_late=True))),
        no_errors_s=seconds(replayed(lambda policy: Corrected(policy, too_soon=True, too_late=True))),
    )
