"""Where a policy's simulated time goes, and the cost of its errors.

The latter is the time of the same policy with one kind of error corrected with knowledge of the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..lookahead.base import SL_CAP, DraftState, LaneContext, LookaheadPolicy
from ..lookahead.fitted import make_policy
from ..lookahead.lanes import parse_lane
from ..records.trace import Costs
from .results import PERFECT_JUDGE
from .samples import Replayed, Sample


def losses(replayed: Replayed) -> dict[str, float]:
    """The parts of the simulated time, in seconds per token of text, and the errors that a perfect policy never makes.

    ``too_long_s`` is the part spent on drafts that were thrown away, each for ``c + decision`` and the mean slope of v;
    ``too_soon`` counts, per token, iterations that the policy ended by its own decision although the next guess would
    have held. Trees have neither.
    """
    draft, costs, counts = replayed.draft, replayed.costs, replayed.counts
    c, decision = costs.draft_step[draft], costs.decision.get(parse_lane(replayed.lane).policy, 0.0)
    lengths = replayed.lengths
    unit = costs.target_s / counts.tokens
    parts = {
        "draft_s": (sum(costs.start(n, draft) for n in lengths) + counts.draft_passes * c) * unit,
        "check_s": sum(costs.verify(n + 1) for n in lengths) * unit,
        "decision_s": counts.drafted * decision * unit,
        "loop_s": counts.target_passes * costs.overhead * unit,
    }
    if replayed.branches:
        return parts
    slope = (costs.verify(SL_CAP + 1) - costs.verify(1)) / SL_CAP
    too_soon = sum(
        _stopped_too_soon(sample, one.iterations, replayed.cap)
        for sample, one in zip(replayed.samples, replayed.simulated)
    )
    too_long = counts.thrown_away * (c + decision + slope)
    return parts | {"too_long_s": too_long * unit, "too_soon": too_soon / counts.tokens}


def _stopped_too_soon(sample: Sample, iterations: Sequence[tuple[int, int, int]], cap: int | None) -> int:
    holds = sample.holds
    most = sample.n_tokens if cap is None else cap
    return sum(n < min(most, holds[start]) for start, n, _ in iterations if start + n + 1 < sample.n_tokens)


class Corrected(LookaheadPolicy):
    """``policy``, but for decisions about drafted tokens that it gets wrong.

    ``too_soon``: it never stops while all that it drafted holds. ``too_late``: it never drafts on after a guess that
    fails. With both it is a perfect classifier of the drafted token, which knows one token later than the oracle.
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


def replay_judge(samples: Sequence[Sample], costs: Costs) -> Replayed:
    """A perfect classifier of the drafted token on every sample; its decisions are free."""
    free, static = replace(costs, decision={}), parse_lane("static:1")
    simulated = [one.simulate(free, Corrected(make_policy(static), too_soon=True, too_late=True)) for one in samples]
    return Replayed(PERFECT_JUDGE, samples, costs, simulated)


def correct(replayed: Replayed) -> dict[str, float]:
    """Seconds per token of a lane as it is and with what holds it back undone, one at a time.

    None of them for policies that make no errors of their own, plain decoding and the oracle, and for trees.
    """
    lane, costs = parse_lane(replayed.lane), replayed.costs
    if lane.is_plain or lane.is_oracle or replayed.branches:
        return {}

    def seconds(one: Replayed, priced: Costs = costs) -> float:
        spent = sum(priced.iteration(n, one.draft, lane.policy) for n in one.lengths)
        return spent * costs.target_s / int(one.tokens.sum())

    def without(**errors: bool) -> float:
        policies = (Corrected(make_policy(lane, replayed.heads), **errors) for _ in replayed.samples)
        simulated = [one.simulate(costs, policy) for one, policy in zip(replayed.samples, policies)]
        return seconds(replace(replayed, simulated=simulated))

    return {
        "as_it_is_s": seconds(replayed),
        "free_decisions_s": seconds(replayed, replace(costs, decision={})),  # features cost nothing, either
        "free_checks_s": seconds(replayed, replace(costs, verify_curve=costs.verify_curve[:1])),  # as of one token
        "never_too_soon_s": without(too_soon=True),  # it never stops while all that it drafted holds
        "never_too_late_s": without(too_late=True),  # it never drafts on after a guess that fails
        "no_errors_s": without(too_soon=True, too_late=True),  # a perfect classifier, at the policy's decision cost
    }
