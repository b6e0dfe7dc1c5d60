"""Threshold policies replayed at many thresholds, with every guess's score: the data of the threshold panel."""

from __future__ import annotations

from typing import Any

from decoding.lanes import Lane, parse_lane
from decoding.lookahead.base import SL_CAP, DraftState, LaneContext, LookaheadPolicy
from decoding.lookahead.registry import make_policy
from decoding.trace import Run, Trace
from decoding.whatif import Replay, Simulated, ending, simulate

from .names import lane_name

SWEPT = ("confidence", "entropy", "disco", "specdecpp")  # those that compare one score with one threshold
THRESHOLDS = tuple(round(0.05 * k, 2) for k in range(1, 20))


class ScoreKeeper(LookaheadPolicy):
    """Asks another policy and keeps the score on which it decided after each guess."""

    def __init__(self, policy: LookaheadPolicy) -> None:
        self.policy = policy
        self.name, self.needs, self.cap = policy.name, policy.needs, policy.cap
        self.scores: list[list[float | None]] = []

    def reset(self, context: LaneContext) -> None:
        self._open: list[float | None] = []
        self.policy.reset(context)

    def should_draft(self, state: DraftState) -> bool:
        wanted = self.policy.should_draft(state)
        if state.n_drafted:
            self._open.append(self.policy.score)
        return wanted

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        self.scores.append(self._open)
        self._open = []
        self.policy.observe(n_drafted, n_accepted)


class _ChainHead:
    """Stands for a fitted head where the chain already holds what it said of every guess."""

    needs: frozenset[str] = frozenset()

    def __init__(self, name: str, longest: int) -> None:
        self.name = name
        self.tuned: dict[str, Any] = {"sl_max": longest}

    def score(self, state: DraftState, index: int) -> float:
        return state.scores[self.name][index]


def threshold_panels(run: Run) -> list[dict[str, Any]]:
    """One panel per lane of ``run`` whose rule compares a score with a threshold, at most three."""
    panels = [_panel(run, trace) for trace in run.lanes if trace.policy in SWEPT and trace.draft in run.chains]
    return [panel for panel in panels if panel][:3]


def _panel(run: Run, trace: Trace) -> dict[str, Any] | None:
    lane, chain = parse_lane(trace.lane), run.chains[trace.draft]
    if not chain.target or (lane.policy in ("disco", "specdecpp") and lane.policy not in chain.along.scores):
        return None
    as_run = _threshold_of(trace)
    values = sorted({*THRESHOLDS, *([round(as_run, 4)] if as_run is not None else [])})
    heads = {name: _ChainHead(name, _longest(trace)) for name in chain.along.scores}
    options = [_option(run, lane, Replay(chain), heads, value) for value in values]
    best = max(range(len(options)), key=lambda i: options[i]["speedup"])
    initial = values.index(round(as_run, 4)) if as_run is not None else best
    name = lane_name(trace.lane)
    return {
        "draft": trace.draft,
        "name": name,
        "title": f"{name}: each guess's score against the threshold",
        "explanation": _EXPLANATIONS[lane.policy],
        "options": options,
        "initial": initial,
        "best_text": f"Best for this run, with hindsight: {values[best]:.2f}, {options[best]['speedup']:.2f}×."
        + (f" It ran with {as_run:.2f}." if as_run is not None else ""),
    }


_EXPLANATIONS = {
    "confidence": "The score is the small model's own probability of its guess: under the line, it stops and checks.",
    "entropy": "The score is derived from the entropy of the small model's choice: past the line, it stops and checks.",
    "disco": "The score is the classifier's probability that the guess holds: under the line, it stops and checks.",
    "specdecpp": "The score is the probability that at least one guess of this round fails: over the line, it stops "
    "and checks.",
}


def _threshold_of(trace: Trace) -> float | None:
    """The threshold that the lane ran with, as its tokens tell it."""
    tokens = (token for iteration in trace.iterations for token in iteration.drafted)
    return next((token.threshold for token in tokens if token.threshold is not None), None)


def _longest(trace: Trace) -> int:
    """The cap on guesses per round that the lane ran with: where one was reached, it is the longest round."""
    capped = [iteration.n_drafted for iteration in trace.iterations if iteration.stop == "cap"]
    return max(capped, default=SL_CAP)


def _option(run: Run, lane: Lane, replay: Replay, heads: dict[str, _ChainHead], value: float) -> dict[str, Any]:
    prefix = f"{lane.draft}/" if lane.draft else ""
    text = f"{prefix}{lane.policy}:{value:g}"
    keeper = ScoreKeeper(make_policy(parse_lane(text), heads))
    simulated = simulate(replay, run.costs, keeper, **ending(run))
    return {
        "value": value,
        "lane": text,
        "name": f"{lane_name(text)}, simulated",
        "sl": [n for _, n, _ in simulated.iterations],
        "accepted": [a for _, _, a in simulated.iterations],
        "scores": _scores(keeper, simulated),
        "speedup": round(simulated.speedup, 4),
        "decision": run.costs.decision.get(lane.policy, 0.0),
    }


def _scores(keeper: ScoreKeeper, simulated: Simulated) -> list[int | None]:
    """Scores in hundredths, one per drafted token; None where the rule was not asked after it (cap, limit)."""
    found: list[int | None] = []
    for (_, n, _), scores in zip(simulated.iterations, keeper.scores):
        padded = (scores + [None] * n)[:n]
        found += [None if score is None else round(100 * score) for score in padded]
    return found
