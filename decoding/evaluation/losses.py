"""Where a policy's simulated time goes, and the cost of its errors.

The latter is the time of the same policy with one kind of error corrected with knowledge of the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..analysis.whatif import Simulated
from ..lookahead.base import SL_CAP, DraftState, LaneContext, LookaheadPolicy
from ..lookahead.fitted import make_policy
from ..lookahead.heads import Head
from ..lookahead.lanes import parse_lane
from ..records.trace import Costs
from .results import PERFECT_JUDGE
from .samples import Replayed, Sample, plain_costs


@dataclass(frozen=True, slots=True)
class Losses:
    """The parts of a policy's simulated time, in seconds per token of text.

    ``too_long_s`` is the part spent on drafts that were thrown away, each for ``c + decision`` and the mean slope of v;
    ``too_soon`` counts, per token, iterations that the policy ended by its own decision although the next guess would
    have held. Both are None for trees.
    """

    draft_s: float
    check_s: float
    decision_s: float
    loop_s: float
    too_long_s: float | None
    too_soon: float | None


def losses(replayed: Replayed, policy: str, samples: Sequence[Sample], costs: Costs) -> Losses:
    """The parts of the simulated time per token, and the errors that a perfect policy would not have made."""
    draft = samples[0].chain.draft
    tokens = sum(one.n_tokens for one in samples)
    c, decision = costs.draft_step[draft], costs.decision.get(policy, 0.0)
    lengths = [n for one in replayed.simulated for _, n, _ in one.iterations]
    starts = sum(costs.start(n, draft) for n in lengths)
    verifying = sum(costs.verify(n + 1) for n in lengths)
    slope = (costs.verify(SL_CAP + 1) - costs.verify(1)) / SL_CAP
    too_soon = sum(
        _stopped_too_soon(one, part.iterations, replayed.cap) for one, part in zip(samples, replayed.simulated)
    )
    per_guess = c + decision + slope
    unit = costs.target_s / tokens
    return Losses(
        draft_s=(starts + replayed.draft_passes * c) * unit,
        check_s=verifying * unit,
        decision_s=replayed.guesses * decision * unit,
        loop_s=replayed.target_passes * costs.overhead * unit,
        too_long_s=None if replayed.branches else replayed.thrown_away * per_guess * unit,
        too_soon=None if replayed.branches else too_soon / tokens,
    )


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
    return Replayed(PERFECT_JUDGE, simulated, plain_costs(samples, costs), None)


@dataclass(frozen=True, slots=True)
class Corrections:
    """Simulated seconds per token of a policy as it is, and with one thing undone that holds it back."""

    as_it_is_s: float
    free_decisions_s: float  # features and decisions cost nothing
    free_checks_s: float  # verifying many tokens costs what verifying one does
    never_too_soon_s: float  # it never stops while all that it drafted holds
    never_too_late_s: float  # it never drafts on after a guess that fails
    no_errors_s: float  # neither: a perfect classifier of the drafted token, at the policy's decision cost


def correct(
    replayed: Replayed, samples: Sequence[Sample], costs: Costs, heads: Mapping[str, Head] | None
) -> Corrections | None:
    """Seconds per token of a lane as it is and with what holds it back undone, one at a time.

    None for policies that make no errors of their own, plain decoding and the oracle, and for trees.
    """
    parsed = parse_lane(replayed.lane)
    if parsed.is_plain or parsed.is_oracle or replayed.branches:
        return None

    def corrected(**errors: bool) -> list[Simulated]:
        return [one.simulate(costs, Corrected(make_policy(parsed, heads), **errors)) for one in samples]

    def seconds(simulated: Sequence[Simulated], priced: Costs = costs) -> float:
        lengths = (n for one in simulated for _, n, _ in one.iterations)
        total = sum(priced.iteration(n, samples[0].chain.draft, parsed.policy) for n in lengths)
        return total * costs.target_s / sum(one.n_tokens for one in simulated)

    as_it_is = replayed.simulated
    return Corrections(
        as_it_is_s=seconds(as_it_is),
        free_decisions_s=seconds(as_it_is, replace(costs, decision={})),
        free_checks_s=seconds(as_it_is, replace(costs, verify_curve=costs.verify_curve[:1])),
        never_too_soon_s=seconds(corrected(too_soon=True)),
        never_too_late_s=seconds(corrected(too_late=True)),
        no_errors_s=seconds(corrected(too_soon=True, too_late=True)),
    )
