"""Synthetic evaluations for tests: the real tables over random chains, without a model."""

from __future__ import annotations

import random
from dataclasses import replace

from decoding.evaluation.advice import recommend
from decoding.evaluation.classify import best_f1
from decoding.evaluation.corrections import correct_all
from decoding.evaluation.drafts import break_even_c, sl_points, speedups_by_suite
from decoding.evaluation.results import ALL, DraftResult, DraftsResult, EvaluationResult, Setting
from decoding.evaluation.samples import Sample, best_of, replay_lane, static_lanes
from decoding.evaluation.tables import (
    Entry,
    always_accepting,
    judge_timings,
    match_rates,
    oracle_lengths,
    pareto,
    policy_results,
)
from decoding.records.trace import Chain, Costs, Guesses
from tests.runs import make_chain, make_costs, make_machine

SUITES = ("code", "prose", "tests")


def make_samples(n: int, seed: int = 0, match: float = 0.85, draft: str = "shallow") -> list[Sample]:
    """``n`` prompts of three suites, the later suites harder, 40 tokens each."""
    rng = random.Random(seed)
    return [
        Sample(f"p{index}", SUITES[index % 3], make_chain(rng, 40, 60, match - 0.08 * (index % 3), draft), "length", 40)
        for index in range(n)
    ]


def sample(right: str, p: list[float] | None = None) -> Sample:
    """A chain from letters: y, the guess holds; n, it does not (and 20 wrong tokens follow)."""
    n = len(right)
    along = Guesses([7 if c == "y" else 3 for c in right], p or [0.9] * n, [0.1] * n)
    tails = {at: Guesses([3] * 20, [0.9] * 20, [0.1] * 20) for at, c in enumerate(right) if c == "n"}
    return Sample("p", "code", Chain("shallow", [7] * n, along, tails), "length", n)


def make_setting(costs: Costs, samples: list[Sample]) -> Setting:
    return Setting(
        pair="synthetic",
        draft="shallow",
        target_fingerprint="0" * 16,
        draft_fingerprint="1" * 16,
        created="2026-11-21T12:00:00+00:00",
        machine=make_machine(),
        target_dtype="bfloat16",
        draft_dtype="int8",
        threads=2,
        split="test",
        max_new_tokens=40,
        prompts={suite: sum(one.suite == suite for one in samples) for suite in SUITES},
        validation_prompts=6,
        clock_repeats=2,
        costs=costs,
    )


def make_evaluation() -> EvaluationResult:
    """An evaluation of six policies on twelve prompts, without a clock."""
    samples, costs = make_samples(12), make_costs()
    best = best_of(static_lanes(), make_samples(6, seed=1), costs)
    lanes = ("autoregressive", "heuristic", "confidence:0.4", "static:5", "entropy", "oracle", "oracle:best")
    entries = [*(Entry(lane, lane) for lane in lanes), Entry("static-opt", best)]
    return EvaluationResult(
        setting=make_setting(costs, samples),
        static_opt=int(best.split(":")[1]),
        match_rate=match_rates(samples),
        always_accept=always_accepting(samples),
        policies=policy_results(entries, samples, costs),
        pareto={
            "static": pareto(static_lanes(), samples, costs, None),
            "confidence": pareto(["confidence:0.3", "confidence:0.6"], samples, costs, None),
        },
        oracle=oracle_lengths(samples),
        texts_equal=(0, 0),
        perfect_judge=judge_timings(entries, samples, costs),
        corrections=correct_all(entries, samples, costs, None),
        best_f1=best_f1(samples),
    )


def make_drafts(c: float = 0.1) -> DraftsResult:
    """Three drafts: better ones cost more; "wide" and "deep" have equal numbers of parameters and opposite shapes."""
    shapes = {
        "tiny": (1, 128, 1_200_000, 0.6, 0.5),
        "wide": (1, 384, 4_000_000, 0.75, 1.0),
        "deep": (4, 192, 4_100_000, 0.8, 2.5),
    }
    costs = make_costs()
    costs = replace(costs, c={name: c * shape[4] for name, shape in shapes.items()})
    found = []
    for name, (layers, width, parameters, match, _) in shapes.items():
        samples = make_samples(9, match=match, draft=name)
        best = best_of(static_lanes(name), samples, costs)
        sl = int(best.rpartition(":")[2])
        sweep = [replay_lane(lane, samples, costs) for lane in static_lanes(name)]
        rates = match_rates(samples)
        gain = speedups_by_suite(sweep[sl - 1], samples)
        found.append(
            DraftResult(
                name,
                f"synthetic/{name}",
                parameters,
                layers,
                width,
                "int8",
                costs.c[name],
                rates,
                sl,
                best,
                gain,
                gain,
                0.004,
                break_even_c(sweep, costs, name),
                sl_points(name, sweep, rates[ALL], costs, {}),
            )
        )
    setting = make_setting(costs, make_samples(9))
    return DraftsResult(setting, found, recommend(found, "synthetic/target", costs))
