"""The parts of a policy's simulated time, and its two kinds of error."""

from __future__ import annotations

from collections.abc import Sequence

from ..lookahead.base import SL_CAP, LaneContext, PlannedPolicy
from ..records.trace import Costs
from .results import Losses
from .samples import Replayed, Sample, plain_costs, simulate_all


class PerfectJudge(PlannedPolicy):
    """A perfect classifier of the drafted token: drafts on while the token holds, stops after one that fails.

    It knows one token later than the oracle, like every policy that judges tokens already drafted.
    """

    name = "perfect-judge"
    cap = None  # like the oracle: an upper bound must not depend on a cap

    def reset(self, context: LaneContext) -> None:
        self._holds = context.known_holds()

    def planned(self, start: int) -> int:
        return self._holds(start) + 1


def replay_judge(samples: Sequence[Sample], costs: Costs) -> Replayed:
    """:class:`PerfectJudge` on every sample; its decisions are free."""
    simulated = simulate_all(samples, costs, PerfectJudge)
    return Replayed(PerfectJudge.name, simulated, plain_costs(samples, costs), PerfectJudge.cap)


def losses(replayed: Replayed, policy: str, samples: Sequence[Sample], costs: Costs) -> Losses:
    """The parts of the simulated time per token, and the errors that a perfect policy would not have made.

    ``too_long_s``: drafts thrown away, each for ``c + decision`` and the mean slope of v. ``too_soon``: iterations
    that ended by the policy's own decision although the next guess would have held.
    """
    draft = samples[0].chain.draft
    tokens = sum(one.n_tokens for one in samples)
    c, decision = costs.c[draft], costs.decision.get(policy, 0.0)
    drafted = sum(one.draft_passes for one in replayed.simulated)
    passes = sum(one.target_passes for one in replayed.simulated)
    lengths = [n for one in replayed.simulated for _, n, _ in one.iterations]
    starts = sum(costs.start(n, draft) for n in lengths)
    checks = sum(costs.check(n + 1) for n in lengths)
    thrown = drafted - sum(one.accepted for one in replayed.simulated)
    slope = (costs.check(SL_CAP + 1) - costs.check(1)) / SL_CAP
    unit = costs.target_s / tokens
    return Losses(
        draft_s=(starts + drafted * c) * unit,
        check_s=checks * unit,
        decision_s=drafted * decision * unit,
        loop_s=passes * costs.o * unit,
        too_long_s=thrown * (c + decision + slope) * unit,
        too_soon=sum(
            _stopped_too_soon(one, part.iterations, replayed.cap) for one, part in zip(samples, replayed.simulated)
        )
        / tokens,
    )


def _stopped_too_soon(sample: Sample, iterations: Sequence[tuple[int, int, int]], cap: int | None) -> int:
    holds = sample.replay.holds
    most = sample.n_tokens if cap is None else cap
    return sum(n < min(most, holds[start]) for start, n, _ in iterations if start + n + 1 < sample.n_tokens)
