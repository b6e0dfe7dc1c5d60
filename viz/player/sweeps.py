"""Threshold policies replayed at many thresholds, with every guess's score: the data of the threshold panel.

A policy with a fixed threshold is replayed at other thresholds; one that computes its threshold, at multiples of it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from decoding.analysis.whatif import Replay, Simulated, ending, simulate
from decoding.errors import UserError
from decoding.lookahead.base import SL_CAP, DraftState, LaneContext, LookaheadPolicy
from decoding.lookahead.fitted import heads_of
from decoding.lookahead.lanes import parse_lane
from decoding.lookahead.registry import make_policy
from decoding.lookahead.spec import PolicySpec
from decoding.lookahead.specs import all_specs
from decoding.records.trace import Run, Trace

from .names import lane_name

FACTORS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0)
MOST = 4  # panels, so that the payload of many lanes stays small


class ScoreKeeper(LookaheadPolicy):
    """Wraps a policy and records the score and threshold of its decision after each guess."""

    def __init__(self, policy: LookaheadPolicy) -> None:
        self.policy = policy
        self.name, self.needs, self.cap = policy.name, policy.needs, policy.cap
        self.scores: list[list[float | None]] = []
        self.thresholds: list[list[float | None]] = []

    def reset(self, context: LaneContext) -> None:
        self._open: list[tuple[float | None, float | None]] = []
        self.policy.reset(context)

    def should_draft(self, state: DraftState) -> bool:
        wanted = self.policy.should_draft(state)
        if state.n_drafted:
            self._open.append((self.policy.score, self.policy.threshold))
        return wanted

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        self.scores.append([score for score, _ in self._open])
        self.thresholds.append([threshold for _, threshold in self._open])
        self._open = []
        self.policy.observe(n_drafted, n_accepted)


class ScaledThreshold(LookaheadPolicy):
    """Wraps a policy so that it compares its score with ``factor`` times its threshold."""

    def __init__(self, policy: LookaheadPolicy, factor: float) -> None:
        self.policy, self.factor = policy, factor
        self.name, self.needs, self.cap = policy.name, policy.needs, policy.cap

    def reset(self, context: LaneContext) -> None:
        self.policy.reset(context)

    def should_draft(self, state: DraftState) -> bool:
        wanted = self.policy.should_draft(state)
        self.score, self.threshold = self.policy.score, self.policy.threshold
        if self.score is None or self.threshold is None:
            return wanted
        self.threshold *= self.factor
        return self.score < self.threshold if self.policy.stops_above else self.score > self.threshold

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        self.policy.observe(n_drafted, n_accepted)


class _ChainHead:
    """Stands in for a fitted head whose scores of all guesses are in the chain."""

    needs: frozenset[str] = frozenset()

    def __init__(self, name: str, longest: int) -> None:
        self.name = name
        self.tuned: dict[str, Any] = {"sl_max": longest}


def threshold_panels(run: Run) -> list[dict[str, Any]]:
    """One panel per lane of ``run`` whose policy compares a score with a threshold, at most MOST."""
    lanes = [trace for trace in run.lanes if trace.draft in run.chains and run.chains[trace.draft].target]
    panels = (_panel_of(run, trace) for trace in lanes)
    return list(islice((panel for panel in panels if panel), MOST))  # the others are not even computed


def _panel_of(run: Run, trace: Trace) -> dict[str, Any] | None:
    spec = all_specs().get(trace.policy)
    if spec is None or spec.score is None:
        return None
    return (_panel if spec.score.fixed else _scaled_panel)(run, trace, spec)


def _panel(run: Run, trace: Trace, spec: PolicySpec) -> dict[str, Any] | None:
    """A policy with a fixed threshold, at other thresholds."""
    lane, chain = parse_lane(trace.lane), run.chains[trace.draft]
    if spec.learned and lane.policy not in chain.along.scores:
        return None
    as_run = _threshold_of(trace)
    values = sorted({*spec.argument.sweep, *([round(as_run, 4)] if as_run is not None else [])})
    heads = {name: _ChainHead(name, _longest(trace)) for name in chain.along.scores}
    prefix = f"{lane.draft}/" if lane.draft else ""

    def policy(value: float) -> LookaheadPolicy:
        return make_policy(parse_lane(f"{prefix}{lane.policy}:{value:g}"), heads)

    panel = _swept(run, trace, spec, values, policy)
    best = panel["options"][panel["best"]]
    panel["initial"] = values.index(round(as_run, 4)) if as_run is not None else panel["best"]
    panel["best_text"] = f"Best for this run, with hindsight: {best['value']:.2f}, {best['speedup']:.2f}×." + (
        f" It ran with {as_run:.2f}." if as_run is not None else ""
    )
    return panel


def _scaled_panel(run: Run, trace: Trace, spec: PolicySpec) -> dict[str, Any] | None:
    """A policy that computes its threshold, at multiples of it.

    None if its head is not installed here or differs from the lane's: then the replay would not match the lane.
    """
    try:
        heads = heads_of(run, trace.draft) if spec.learned else {}
    except UserError:
        return None
    if spec.learned and (spec.name not in heads or spec.name not in run.chains[trace.draft].along.scores):
        return None
    lane = parse_lane(trace.lane)
    panel = _swept(run, trace, spec, list(FACTORS), lambda factor: ScaledThreshold(make_policy(lane, heads), factor))
    panel["initial"] = FACTORS.index(1.0)
    if panel["options"][panel["initial"]]["sl"] != [iteration.n_drafted for iteration in trace.iterations]:
        return None
    for option in panel["options"]:
        option["words"] = "its own threshold" if option["value"] == 1 else f"{option['value']:g} times its threshold"
    best = panel["options"][panel["best"]]
    panel["best_text"] = f"Best for this run, with hindsight: {best['words']}, {best['speedup']:.2f}×."
    return panel


def _swept(
    run: Run, trace: Trace, spec: PolicySpec, values: list[float], policy: Callable[[float], LookaheadPolicy]
) -> dict[str, Any]:
    """The common part of the panels: the lane replayed with ``policy(value)`` for each value."""
    replay, name = Replay(run.chains[trace.draft]), lane_name(trace.lane)
    options = [_option(run, trace, replay, policy(value), value, moving=not spec.score.fixed) for value in values]
    return {
        "draft": trace.draft,
        "name": name,
        "title": f"{name}: each guess's score against the threshold",
        "explanation": spec.score.explanation,
        "options": options,
        "best": max(range(len(options)), key=lambda i: options[i]["speedup"]),
    }


def _threshold_of(trace: Trace) -> float | None:
    """The threshold that the lane ran with, from its tokens."""
    tokens = (token for iteration in trace.iterations for token in iteration.drafted)
    return next((token.threshold for token in tokens if token.threshold is not None), None)


def _longest(trace: Trace) -> int:
    """The lane's cap on guesses per round: if it was reached, the longest round."""
    capped = [iteration.n_drafted for iteration in trace.iterations if iteration.stop == "cap"]
    return max(capped, default=SL_CAP)


def _option(
    run: Run, trace: Trace, replay: Replay, policy: LookaheadPolicy, value: float, *, moving: bool
) -> dict[str, Any]:
    """One replay; ``moving``: its threshold is not the same for every guess."""
    keeper = ScoreKeeper(policy)
    simulated = simulate(replay, run.costs, keeper, **ending(run))
    option = {
        "value": value,
        "sl": [n for _, n, _ in simulated.iterations],
        "accepted": [a for _, _, a in simulated.iterations],
        "scores": _hundredths(keeper.scores, simulated),
        "speedup": round(simulated.speedup, 4),
        "decision": run.costs.decision.get(trace.policy, 0.0),
    }
    if moving:
        option["thresholds"] = _hundredths(keeper.thresholds, simulated)
    return option


def _hundredths(kept: list[list[float | None]], simulated: Simulated) -> list[int | None]:
    """In hundredths, one per drafted token; None if the policy was not asked after it (cap, limit)."""
    found: list[int | None] = []
    for (_, n, _), values in zip(simulated.iterations, kept):
        padded = (values + [None] * n)[:n]
        found += [None if value is None else round(100 * min(value, 10.0)) for value in padded]
    return found
