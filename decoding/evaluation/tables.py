"""The papers' tables, computed from replayed lanes and clock readings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..analysis.metrics import match_rate, oracle_sls
from ..lookahead.heads import Head
from ..lookahead.lanes import parse_lane
from ..records.trace import Costs
from .classify import always_accept, predict
from .losses import PerfectJudge, losses, replay_judge
from .results import ALL, OracleLengths, ParetoPoint, PolicyResult, Prediction, Row, Timing
from .samples import Replayed, Sample, replay_lane
from .statistics import Bootstrap, clock_noise

STATIC_OPT = "static-opt"
PLACES = 20


@dataclass(slots=True)
class Entry:
    """A policy of the tables: what it is called there, and the lane that runs."""

    label: str
    lane: str


@dataclass(slots=True)
class ClockTable:
    """Clock readings: seconds of decoding by lane, parallel to ``prompts`` (medians over repeats)."""

    prompts: list[str]
    suites: list[str]
    tokens: np.ndarray  # of text
    seconds: dict[str, np.ndarray]  # lane string -> [prompts]


def groups(suites: Sequence[str]) -> dict[str, list[int]]:
    """Indices of all prompts (ALL), and of those of each suite."""
    found: dict[str, list[int]] = {ALL: list(range(len(suites)))}
    for index, suite in enumerate(suites):
        found.setdefault(suite, []).append(index)
    return found


def policy_results(
    entries: Sequence[Entry],
    samples: Sequence[Sample],
    costs: Costs,
    heads: Mapping[str, Head] | None = None,
    clock: ClockTable | None = None,
) -> list[PolicyResult]:
    """One result per policy; the intervals of all policies rest on the same resampled prompts."""
    replayed = {entry.lane: replay_lane(entry.lane, samples, costs, heads) for entry in entries}
    reference = _reference(entries)
    simulated = _simulated_timings(replayed, samples, costs, reference)
    clocked = _clock_timings(clock, entries, reference) if clock else {}
    if clock and clocked:
        _beside_simulation(clocked, clock, replayed, samples, reference)
    rows = {lane: _rows(one, samples, costs, simulated[lane], clocked.get(lane, {})) for lane, one in replayed.items()}
    return [PolicyResult(entry.label, entry.lane, rows[entry.lane]) for entry in entries]


def judge_timings(entries: Sequence[Entry], samples: Sequence[Sample], costs: Costs) -> dict[str, Timing]:
    """Suite -> timing of a perfect classifier of the drafted token, compared with static-opt."""
    reference = _reference(entries)
    replayed = {PerfectJudge.name: replay_judge(samples, costs)}
    if reference:
        replayed[reference] = replay_lane(reference, samples, costs)
    return _simulated_timings(replayed, samples, costs, reference)[PerfectJudge.name]


def _reference(entries: Sequence[Entry]) -> str | None:
    return next((entry.lane for entry in entries if entry.label == STATIC_OPT), None)


def _simulated_timings(
    replayed: Mapping[str, Replayed], samples: Sequence[Sample], costs: Costs, reference: str | None
) -> dict[str, dict[str, Timing]]:
    return _timings(
        {lane: one.cost * costs.target_s for lane, one in replayed.items()},
        np.array([sample.n_tokens for sample in samples]),
        [sample.suite for sample in samples],
        next(iter(replayed.values())).plain * costs.target_s,
        reference,
    )


def _rows(
    replayed: Replayed,
    samples: Sequence[Sample],
    costs: Costs,
    simulated: dict[str, Timing],
    clocked: dict[str, Timing],
) -> dict[str, Row]:
    rows = {}
    for suite, indices in groups([sample.suite for sample in samples]).items():
        part = replayed.pick(indices)
        chosen = [samples[index] for index in indices]
        rows[suite] = _row(part, chosen, costs, simulated[suite], clocked.get(suite))
    return rows


def _row(replayed: Replayed, samples: Sequence[Sample], costs: Costs, simulated: Timing, clock: Timing | None) -> Row:
    passes = sum(one.target_passes for one in replayed.simulated)
    drafted = sum(one.draft_passes for one in replayed.simulated)
    accepted = sum(one.accepted for one in replayed.simulated)
    tokens = int(replayed.tokens.sum())
    return Row(
        target_passes=passes,
        draft_passes=drafted,
        tokens_per_target_pass=1 + accepted / passes,
        discard_rate=(drafted - accepted) / tokens,
        verification_rate=passes / tokens,
        simulated=simulated,
        clock=clock,
        prediction=predict(replayed, samples) if drafted else None,
        losses=losses(replayed, parse_lane(replayed.lane).policy, samples, costs),
    )


def _timings(
    seconds: Mapping[str, np.ndarray],
    tokens: np.ndarray,
    suites: Sequence[str],
    plain: np.ndarray,
    reference: str | None,
) -> dict[str, dict[str, Timing]]:
    """Lane -> suite -> its timing; ``seconds``, ``tokens`` and ``plain`` are per prompt."""
    found: dict[str, dict[str, Timing]] = {lane: {} for lane in seconds}
    for suite, indices in groups(suites).items():
        bootstrap = Bootstrap(len(indices))
        opt = seconds[reference][indices] if reference is not None and reference in seconds else None
        for lane, spent in seconds.items():
            part = spent[indices]
            cut = bootstrap.cut(part, opt) if opt is not None and lane != reference else None
            found[lane][suite] = Timing(
                prompts=len(indices),
                tokens=int(tokens[indices].sum()),
                latency_s=float(part.sum() / tokens[indices].sum()),
                p95_token_s=float(np.percentile(part / tokens[indices], 95)),
                speedup=bootstrap.ratio(plain[indices], part),
                cut=cut,
            )
    return found


def _clock_timings(clock: ClockTable, entries: Sequence[Entry], reference: str | None) -> dict[str, dict[str, Timing]]:
    if not clock.prompts or "autoregressive" not in clock.seconds:
        return {}
    seconds = {entry.lane: clock.seconds[entry.lane] for entry in entries if entry.lane in clock.seconds}
    return _timings(seconds, clock.tokens, clock.suites, clock.seconds["autoregressive"], reference)


def _beside_simulation(
    clocked: Mapping[str, Mapping[str, Timing]],
    clock: ClockTable,
    replayed: Mapping[str, Replayed],
    samples: Sequence[Sample],
    reference: str | None,
) -> None:
    """Fills in ``over_simulated`` of every timing, and ``cut_noise`` of those that have a ``cut``."""
    place = {sample.prompt: index for index, sample in enumerate(samples)}
    rows = [place[prompt] for prompt in clock.prompts]
    simulated = {lane: replayed[lane].cost[rows] for lane in clocked}
    simulated_plain, plain = next(iter(replayed.values())).plain[rows], clock.seconds["autoregressive"]
    for suite, indices in groups(clock.suites).items():
        bootstrap = Bootstrap(len(indices))
        for lane, timings in clocked.items():
            ours, ours_simulated = clock.seconds[lane][indices], simulated[lane][indices]
            timings[suite].over_simulated = bootstrap.excess(
                (plain[indices], ours), (simulated_plain[indices], ours_simulated)
            )
            if reference is not None and timings[suite].cut is not None:
                timings[suite].cut_noise = clock_noise(
                    ours, clock.seconds[reference][indices], ours_simulated, simulated[reference][indices]
                )


def always_accepting(samples: Sequence[Sample]) -> dict[str, Prediction]:
    """Suite -> the prediction figures of always-accept."""
    parts = groups([sample.suite for sample in samples])
    return {suite: always_accept([samples[index] for index in indices]) for suite, indices in parts.items()}


def match_rates(samples: Sequence[Sample]) -> dict[str, float]:
    """Match rate along the texts, by suite and over all; all positions weigh the same."""
    found = {}
    for suite, indices in groups([sample.suite for sample in samples]).items():
        lengths = [samples[index].n_tokens for index in indices]
        rates = [match_rate(samples[index].chain) or 0.0 for index in indices]
        found[suite] = float(np.average(rates, weights=lengths))
    return found


def pareto(
    lanes: Sequence[str],
    samples: Sequence[Sample],
    costs: Costs,
    heads: Mapping[str, Head] | None,
) -> list[ParetoPoint]:
    """Discard against verification rate over ``lanes``, the thresholds (or SLs) of one policy; all suites together."""
    points = []
    for lane in lanes:
        replayed = replay_lane(lane, samples, costs, heads)
        tokens = replayed.tokens.sum()
        lost = sum(one.draft_passes - one.accepted for one in replayed.simulated)
        passes = sum(one.target_passes for one in replayed.simulated)
        points.append(ParetoPoint(lane, float(lost / tokens), float(passes / tokens), replayed.speedup))
    return points


def oracle_lengths(samples: Sequence[Sample]) -> dict[str, OracleLengths]:
    """Mean, deviation, histogram and course of the oracle's SL, by suite and over all."""
    per_sample = [oracle_sls(sample.chain) for sample in samples]
    parts = groups([sample.suite for sample in samples])
    return {suite: _lengths([per_sample[index] for index in indices]) for suite, indices in parts.items()}


def _lengths(texts: Sequence[Sequence[int]]) -> OracleLengths:
    lengths = np.array([length for text in texts for length in text], dtype=float)
    buckets: list[list[int]] = [[] for _ in range(PLACES)]
    for text in texts:
        for index, length in enumerate(text):
            place = index / (len(text) - 1) if len(text) > 1 else 0.0
            buckets[min(PLACES - 1, int(place * PLACES))].append(length)
    return OracleLengths(
        mean=float(lengths.mean()),
        sd=float(lengths.std()),
        iterations=len(lengths),
        histogram=sorted(Counter(int(length) for length in lengths).items()),
        by_place=[float(np.mean(bucket)) if bucket else None for bucket in buckets],
    )
