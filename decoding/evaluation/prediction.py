"""How well a policy predicts which guesses hold (F1 and AUC of accept prediction), where its simulated time goes, and
what its errors cost: the time of the same policy with one kind of error corrected with knowledge of the outcome.

Every output position of a text gets at most one prediction, the one that the policy made there in its replay:

- a drafted token is predicted to hold;
- except the last one of an iteration that a policy with a score of the last token (confidence, entropy, AdaEDL, DISCO,
  SpecDec++) ended by its own decision: judging that token is how it stopped, so that token is predicted to fail
  (SpecDec++ has judged only the tokens before it, for which it stands there);
- where any other policy ended an iteration by its own decision and all drafts held, the guess that it did not ask
  for (the bonus position) is predicted to fail.

Dropped tokens are void and do not count; nor do positions where a cap or the end of the text decided. The truth is
whether the draft's first choice at that position is the target's token. *Always-accept*, which predicts everything
to hold, has recall 1 and the match rate m as precision: F1 = 2m / (1 + m), so that a high match rate makes F1 cheap.
The AUC is of the scores at all positions of the text, whatever the threshold; always-accept has 0.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..lookahead.base import SL_CAP, DraftState, LaneContext, LookaheadPolicy
from ..lookahead.fitted import make_policy
from ..lookahead.lanes import parse_lane
from ..lookahead.spec import PolicySpec, all_specs
from ..records.trace import Costs
from .results import PERFECT_JUDGE
from .samples import Replayed, Sample


def predict(replayed: Replayed) -> dict[str, float]:
    """``f1``, ``precision`` and ``recall`` of the lane's predictions, and the ``auc`` of its score if it has one.

    None of them for a policy that never drafts, and for trees, which have several guesses for one place.
    """
    if replayed.branches or not replayed.counts.draft_passes:
        return {}
    lane = parse_lane(replayed.lane)
    pairs = [
        pair
        for sample, simulated in zip(replayed.samples, replayed.simulated)
        for pair in _predictions(sample, simulated.iterations, _judges_last(lane.spec), replayed.cap)
    ]
    auc = auc_of(lane.policy, replayed.samples)
    return _quality(pairs) | ({} if auc is None else {"auc": auc})


def always_accept(samples: Sequence[Sample]) -> dict[str, float]:
    """The figures of predicting that every guess holds."""
    return _quality([(True, truth) for sample in samples for truth in _truth(sample)]) | {"auc": 0.5}


def auc_of(policy: str, samples: Sequence[Sample]) -> float | None:
    """Area under the ROC curve of the policy's score along the texts; None if it has no score."""
    from sklearn.metrics import roc_auc_score

    truth, scores = _scored(policy, samples)
    return float(roc_auc_score(truth, scores)) if scores and len(set(truth)) == 2 else None


def best_f1(samples: Sequence[Sample]) -> dict[str, float]:
    """Policy -> the highest F1 that any threshold of its score reaches along the texts, no position left out.

    The threshold is found on the reported texts themselves: this is an upper bound, and nothing is chosen by it.
    """
    from sklearn.metrics import precision_recall_curve

    found = {}
    for policy, spec in all_specs().items():
        if spec.score is None or not _judges_last(spec) or not spec.score.fixed:  # a moving threshold has no single F1
            continue
        truth, scores = _scored(policy, samples)
        if scores and any(truth):
            precision, recall, _ = precision_recall_curve(truth, scores)
            found[policy] = float((2 * precision * recall / (precision + recall).clip(min=1e-12)).max())
    return found


def _truth(sample: Sample) -> list[bool]:
    return [guess == token for guess, token in zip(sample.chain.along.choice, sample.chain.target)]


def _scored(policy: str, samples: Sequence[Sample]) -> tuple[list[bool], list[float]]:
    """Whether the guess holds at each position of the texts, and the policy's score there; [] if it has none."""
    truth = [held for sample in samples for held in _truth(sample)]
    scores = [score for sample in samples for score in all_specs()[policy].scores_along(sample.chain.along)]
    return truth, scores if len(scores) == len(truth) else []


def _judges_last(spec: PolicySpec) -> bool:
    return spec.score is not None and spec.score.judges_last


def _predictions(
    sample: Sample, iterations: Sequence[tuple[int, int, int]], scored: bool, cap: int | None
) -> Iterator[tuple[bool, bool]]:
    """(predicted to hold, held) at the positions that the policy decided on; where its ``cap`` decided, it predicts
    that the guess holds.
    """
    wanted, holds, reach = sample.wanted, sample.holds, sample.reach
    for start, drafted, accepted in iterations:
        most = min(wanted - start - 1, reach[start])
        decided = drafted < (most if cap is None else min(cap, most))
        for index in range(min(drafted, accepted + 1)):
            if start + index < sample.n_tokens:
                predicted = not (scored and decided and index == drafted - 1)
                yield predicted, index < accepted
        bonus = start + drafted
        if decided and not scored and accepted == drafted and bonus < sample.n_tokens:
            yield False, holds[start] > drafted


def _quality(pairs: Sequence[tuple[bool, bool]]) -> dict[str, float]:
    right = sum(predicted and held for predicted, held in pairs)
    predicted = sum(predicted for predicted, _ in pairs)
    held = sum(held for _, held in pairs)
    return {
        "f1": 2 * right / (predicted + held) if predicted + held else 0.0,
        "precision": right / predicted if predicted else 0.0,
        "recall": right / held if held else 0.0,
    }


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
        n < min(sample.n_tokens if replayed.cap is None else replayed.cap, sample.holds[start])
        for sample, one in zip(replayed.samples, replayed.simulated)
        for start, n, _ in one.iterations
        if start + n + 1 < sample.n_tokens
    )
    too_long = counts.thrown_away * (c + decision + slope)
    return parts | {"too_long_s": too_long * unit, "too_soon": too_soon / counts.tokens}


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
        self._holds = context.known_chain().holds
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
