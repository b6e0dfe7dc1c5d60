"""How well a policy predicts which guesses hold: F1 and AUC of accept prediction.

Every output position of a text gets at most one prediction, the one that the policy made there in its replay:

- a drafted token is predicted to hold;
- except the last one of an iteration that a policy with a score of the last token (confidence, entropy, AdaEDL, DISCO,
  SpecDec++) ended by its own decision: judging that token is how it stopped, so that token is predicted to fail;
- where any other policy ended an iteration by its own decision and all drafts held, the guess that it did not ask
  for (the bonus position) is predicted to fail.

Dropped tokens are void and do not count; nor do positions where a cap or the end of the text decided. The truth is
whether the draft's first choice at that position is the target's token. *Always-accept*, which predicts everything
to hold, has recall 1 and the match rate m as precision: F1 = 2m / (1 + m), so that a high match rate makes F1 cheap.
The AUC is of the scores at all positions of the text, whatever the threshold; always-accept has 0.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..lookahead.lanes import parse_lane
from ..lookahead.spec import PolicySpec, all_specs
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
