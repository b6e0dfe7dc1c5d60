"""Synthetic evaluations for tests: the real tables over random chains, without a model."""

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache, wraps

from decoding.evaluation.choices import best_of, static_lanes
from decoding.evaluation.drafts import best_figures, break_even_c, simulated_figures
from decoding.evaluation.figures import draft_figures, match_rates, policy_figures, sweep_figures
from decoding.evaluation.results import ALL, Draft, EvaluationResult, Figure, Setting
from decoding.evaluation.samples import Sample, replay_lane
from decoding.records.trace import Chain, Costs, Guesses
from tests.runs import make_chain, make_costs, make_machine

SUITES = ("code", "prose", "tests")


def make_samples(n: int, seed: int = 0, match: float = 0.85, draft: str = "shallow") -> list[Sample]:
    """``n`` prompts of three suites, the later suites harder, 40 tokens each."""
    rng = random.Random(seed)
    chains = [make_chain(rng, 40, 60, match - 0.08 * (index % 3), draft) for index in range(n)]
    return [
        Sample(chain, 40, "length", prompt=f"p{index}", suite=SUITES[index % 3]) for index, chain in enumerate(chains)
    ]


def sample(right: str, p: list[float] | None = None) -> Sample:
    """A chain from letters: y, the guess holds; n, it does not (and 20 wrong tokens follow)."""
    n = len(right)
    along = Guesses([7 if c == "y" else 3 for c in right], p or [0.9] * n, [0.1] * n)
    tails = {at: Guesses([3] * 20, [0.9] * 20, [0.1] * 20) for at, c in enumerate(right) if c == "n"}
    return Sample(Chain("shallow", [7] * n, along, tails), n, "length", prompt="p", suite="code")


def make_setting(costs: Costs, samples: list[Sample]) -> Setting:
    return Setting(
        pair="synthetic",
        draft="shallow",
        target="synthetic/target",
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


def made_once(make: Callable[..., EvaluationResult]) -> Callable[..., EvaluationResult]:
    """``make`` computes each result once; a test gets a copy, which it may change."""
    kept = cache(make)
    return wraps(make)(lambda **options: deepcopy(kept(**options)))


@made_once
def make_evaluation() -> EvaluationResult:
    """An evaluation of eight policies on twelve prompts, without a clock."""
    samples, costs = make_samples(12), make_costs()
    best = best_of(static_lanes(), make_samples(6, seed=1), costs)
    labels = ("autoregressive", "heuristic", "confidence:0.4", "static:5", "entropy", "oracle", "oracle:best")
    lanes = {**{label: label for label in labels}, "static-opt": best}
    swept = [*static_lanes(), "confidence:0.3", "confidence:0.6"]
    figures = [
        *policy_figures(lanes, samples, costs),
        *draft_figures(samples),
        *sweep_figures(swept, samples, costs, None),
    ]
    return EvaluationResult(make_setting(costs, samples), figures, lanes)


@made_once
def make_drafts(c: float = 0.1) -> EvaluationResult:
    """Three drafts: better ones cost more; "wide" and "deep" have equal numbers of parameters and opposite shapes."""
    shapes = {
        "tiny": (1, 128, 1_200_000, 0.6, 0.5),
        "wide": (1, 384, 4_000_000, 0.75, 1.0),
        "deep": (4, 192, 4_100_000, 0.8, 2.5),
    }
    costs = make_costs()
    costs = replace(costs, draft_step={name: c * shape[4] for name, shape in shapes.items()})
    drafts, figures = [], []
    for name, (layers, width, parameters, match, _) in shapes.items():
        samples = make_samples(9, match=match, draft=name)
        best = best_of(static_lanes(name), samples, costs)
        sl = int(best.rpartition(":")[2])
        sweep = [replay_lane(lane, samples, costs) for lane in static_lanes(name)]
        drafts.append(Draft(name, f"synthetic/{name}", parameters, layers, width, "int8", "", sl, best))
        figures += [
            Figure(name, "", ALL, "c", costs.draft_step[name]),
            Figure(name, "", ALL, "break_even_c", break_even_c(sweep)),
            *match_rates(samples),
            *simulated_figures(sweep),
            *best_figures(sweep[sl - 1]),
        ]
    return EvaluationResult(make_setting(costs, make_samples(9)), list(dict.fromkeys(figures)), drafts=drafts)


def changed(result: EvaluationResult, *figures: Figure) -> EvaluationResult:
    """``result`` with these figures in place of those of the same names, or added."""
    new = {one[:4] for one in figures}
    return replace(result, figures=[*(one for one in result.figures if one[:4] not in new), *figures])


def on_clock(result: EvaluationResult, n: int) -> EvaluationResult:
    """``result`` as if ``n`` prompts had been simulated and timed with the same outcome."""
    timed = [one._replace(n=n) for one in result.figures if one.metric in ("latency_s", "speedup", "cut", "tokens")]
    return changed(result, *timed, *(one._replace(metric=f"clock_{one.metric}") for one in timed))


def with_prompts(result: EvaluationResult, n: int) -> EvaluationResult:
    """``result`` as if of ``n`` prompts, all of them timed: under five there are no intervals."""
    return on_clock(replace(result, figures=[one._replace(n=n) for one in result.figures]), n)


def make_papers(suites: dict[str, str]) -> EvaluationResult:
    """``make_evaluation()`` as if on data sets of the papers: with its suites renamed as ``suites`` says."""
    result = make_evaluation()
    prompts = {suites.get(name, name): n for name, n in result.setting.prompts.items()}
    figures = [one._replace(suite=suites.get(one.suite, one.suite)) for one in result.figures]
    return replace(result, setting=replace(result.setting, prompts=prompts), figures=figures)
