"""Evaluation figures from known chains: prediction quality, intervals, tables, advice, reports."""

import io
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from decoding.analysis.bootstrap import Bootstrap, clock_noise
from decoding.analysis.whatif import with_draft_step
from decoding.cli.evaluate import show_result
from decoding.comparison.costs import smooth_costs
from decoding.errors import UserError
from decoding.evaluation import figures
from decoding.evaluation.choices import best_of, draft_candidates, static_lanes
from decoding.evaluation.drafts import break_even_c, clocked_figures, plain_on_clock
from decoding.evaluation.figures import METRICS, PASSES, Metric, match_rates
from decoding.evaluation.options import options_from_dict
from decoding.evaluation.prediction import always_accept, auc_of, best_f1, predict
from decoding.evaluation.report import markdown, tables_of, to_csv
from decoding.evaluation.results import ALL, ENOUGH_FOR_INTERVAL, EvaluationResult
from decoding.evaluation.samples import replay_lane
from decoding.lookahead.lanes import parse_lane
from tests.evaluations import (
    changed,
    make_drafts,
    make_evaluation,
    make_papers,
    make_samples,
    make_setting,
    sample,
    with_prompts,
)
from tests.runs import make_costs
from viz.reports.__main__ import whole_page
from viz.reports.report import report_of

COSTS = make_costs()


def evaluated(lanes: dict[str, str], samples, clock=None) -> EvaluationResult:
    """The figures of ``lanes``, by their labels."""
    found = figures.policy_figures(lanes, samples, COSTS, clock=clock)
    return EvaluationResult(make_setting(COSTS, samples), found, lanes)


# -- prediction ----------------------------------------------------------------------------------------


DOUBT = [0.9, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]


@pytest.mark.parametrize(
    "lane, guesses, expected",
    [
        # Drafted means predicted to hold, the bonus position to fail; iterations of at most three tokens start at
        # 0: y y drafted and held, bonus position 2 predicted to fail but held;
        # 3: y held, n (position 4) drafted and failed;
        # 5: y y held (positions 5 and 6); position 7 is the target's by the token limit: nothing was decided there.
        ("static:2", sample("yyyynyyy"), {"precision": 5 / 6, "recall": 5 / 6, "f1": 5 / 6}),
        # 0: n failed, and what was drafted after it is void; 1: y y y held, and so did the bonus position 4; 5: y y y.
        ("static:3", sample("nyyyyyyyy"), {"precision": 6 / 7, "recall": 6 / 7, "f1": 6 / 7}),
        # Unsure exactly at the wrong guess: every decided token is predicted right.
        ("confidence:0.5", sample("ynyyyyyy", DOUBT), {"precision": 1.0, "recall": 1.0, "f1": 1.0, "auc": 1.0}),
        ("confidence:0.5", sample("yyyy", DOUBT[:4]), {"precision": 1.0, "recall": 1 / 2, "f1": 2 / 3}),
        ("oracle", sample("yynyynnyyyy"), {"precision": 1.0, "recall": 1.0, "f1": 1.0}),
    ],
)
def test_what_a_policy_drafts_predicts_what_holds(lane, guesses, expected):
    assert predict(replay_lane(lane, [guesses], COSTS)) == pytest.approx(expected)


def test_where_its_cap_ends_the_drafting_a_policy_has_not_decided():
    replayed = replace(replay_lane("confidence:0.5", [sample("yyyy", DOUBT[:4])], COSTS), cap=2)
    assert predict(replayed)["recall"] == 1.0


def test_a_guess_costs_its_share_of_the_first_step_too():
    result = make_drafts()
    draft = result.drafts[0]
    result.setting.costs = replace(result.setting.costs, first_step={draft.name: 0.3})
    assert result.guess_cost(draft) == pytest.approx(result.value("c", draft=draft.name) + 0.3 / draft.best_sl)


def test_always_accept_has_the_match_rate_as_precision():
    samples = [*make_samples(6), sample("nnnn")]
    found = always_accept(samples)
    rate = next(one.value for one in match_rates(samples) if one.suite == ALL)
    assert found["precision"] == pytest.approx(rate) and found["recall"] == 1.0
    assert found["f1"] == pytest.approx(2 * rate / (1 + rate)) and found["auc"] == 0.5


def test_auc_of_scores_is_the_chance_that_a_right_guess_scores_higher():
    one = sample("yyn", [0.9, 0.3, 0.5])
    assert auc_of("confidence", [one]) == pytest.approx(0.5)
    assert auc_of("static", [one]) is None
    assert auc_of("confidence", [sample("yyy")]) is None  # only one class


# -- intervals -----------------------------------------------------------------------------------------


def test_an_interval_holds_95_percent():
    found = Bootstrap(400).ratio([0, 1] * 200, [1] * 400)
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.5 / 20, rel=0.06)
    assert found.high - 0.5 == pytest.approx(0.5 - found.low, rel=0.1)


def test_paired_figures_are_narrower_than_their_parts():
    rng = np.random.default_rng(0)
    theirs = rng.uniform(1, 20, 60)
    ours = theirs * rng.normal(0.9, 0.01, 60)
    found = Bootstrap(60).cut(ours, theirs)
    assert found.value == pytest.approx(0.1, abs=0.01) and found.high - found.low < 0.02
    assert Bootstrap(60).ratio(2 * theirs, theirs) == pytest.approx((2.0, 2.0, 2.0))


# -- tables --------------------------------------------------------------------------------------------


def test_rows_are_the_sums_over_prompts():
    samples = make_samples(9)
    result = evaluated({"autoregressive": "autoregressive", "static-opt": "static:4", "oracle": "oracle"}, samples)
    replayed = replay_lane("static:4", samples, COSTS)
    tokens = sum(one.n_tokens for one in samples)
    found = {one.metric: one.value for one in result.figures if (one.policy, one.suite) == ("static-opt", ALL)}
    assert found["target_passes"] == sum(len(one.iterations) for one in replayed.simulated)
    lost = sum(drafted - accepted for one in replayed.simulated for _, drafted, accepted in one.iterations)
    assert found["discard_rate"] == pytest.approx(lost / tokens)
    assert found["verification_rate"] == pytest.approx(found["target_passes"] / tokens)
    assert found["speedup"] == pytest.approx(replayed.plain.sum() / replayed.cost.sum())
    assert found["latency_s"] == pytest.approx(replayed.cost.sum() * COSTS.target_s / tokens)
    assert "cut" not in found and result.value("cut", "autoregressive") < 0
    latency = result.value("latency_s", "oracle")
    assert result.value("cut", "oracle") == pytest.approx(1 - latency / found["latency_s"])
    assert found["f1"] < 1 and result.find("f1", "autoregressive") is None


def test_suites_add_up_to_all():
    samples = make_samples(12)
    result = evaluated({"static-opt": "static:3"}, samples)
    speedups = {one.suite: one for one in result.figures if (one.policy, one.metric) == ("static-opt", "speedup")}
    assert len(speedups) == 4 and sum(one.n for suite, one in speedups.items() if suite != ALL) == 12
    tokens = {one.suite: one.value for one in result.figures if one.metric == "tokens"}
    assert 2 * tokens[ALL] == sum(tokens.values())


@pytest.fixture
def rounds():
    """A new figure of every policy, in the table of the passes: one line."""
    METRICS.append(Metric("rounds", "rounds", PASSES, ",.0f", of=lambda run: 123456.0))
    yield
    METRICS.pop()


def test_a_figure_is_one_line_and_is_found_in_the_long_table_and_in_every_report(rounds, capsys):
    result = make_evaluation.__wrapped__()  # not one that was made before
    show_result(result)
    for text in (markdown(result), capsys.readouterr().out, whole_page("", report_of(result).content(""))):
        assert "rounds" in text and "123,456" in text
    assert "123456.0" in next(line for line in to_csv([result]).splitlines() if ",rounds," in line)
    tables = [table for section in report_of(result).content("")["sections"] for table in section["tables"]]
    passes = next(table for table in tables if table["title"] == PASSES)
    assert passes["columns"][-1] == "rounds" and passes["rows"][0][-1] == ["123,456", 123456.0]


def test_the_long_table_holds_numbers_that_can_be_plotted():
    result = make_evaluation()
    frame = pd.read_csv(io.StringIO(to_csv([result])), keep_default_na=False, na_values=[""])
    assert list(frame) == ["pair", "draft", "policy", "suite", "split", "metric", "value", "low", "high", "n"]
    speedups = frame[(frame.metric == "speedup") & (frame.suite == ALL)].set_index("policy")
    assert set(result.lanes) <= set(speedups.index)
    assert f",{result.find('speedup', 'oracle').n}\n" in to_csv([result])  # a whole number
    opt = result.find("speedup", "static-opt")
    assert list(speedups.loc["static-opt", ["value", "low", "high", "n"]]) == pytest.approx(list(opt[4:]))


def test_the_clocks_noise_is_distinguished_from_the_spread_of_prompts():
    rng = np.random.default_rng(3)
    ours, theirs = rng.uniform(1, 9, 200), rng.uniform(1, 9, 200)  # prompts differ a lot, clocks a little
    busy = rng.normal(1.0, 0.2, 200)  # both lanes of a reading
    cuts = []
    for _ in range(400):
        readings = [2.0 * part * rng.normal(1.0, 0.03, 200) for part in (ours, theirs)]
        cuts.append(readings[0].sum() / readings[1].sum())
    noise = clock_noise(*readings, ours, theirs)
    assert noise == pytest.approx(1.96 * np.std(cuts), rel=0.3)
    assert clock_noise(2.0 * ours, 3.0 * theirs, ours, theirs) == pytest.approx(0.0, abs=1e-12)
    assert clock_noise(ours * busy, ours * busy, ours, ours) == pytest.approx(0.0, abs=1e-12)
    assert noise < Bootstrap(200).cut(ours, theirs).value - Bootstrap(200).cut(ours, theirs).low


def test_the_best_f1_of_a_score_is_that_of_its_best_threshold():
    found = best_f1([sample("yynyn", [0.9, 0.8, 0.6, 0.7, 0.1])])
    assert found["confidence"] == pytest.approx(1.0) and "disco" not in found
    assert best_f1([sample("ynyn", [0.5] * 4)])["confidence"] == pytest.approx(2 / 3)  # always-accept's


def clock_of_two(tokens, plain, static) -> pd.DataFrame:
    """The seconds of plain decoding and of static:4 on two prompts."""
    return pd.DataFrame({"tokens": tokens, "autoregressive": plain, "static:4": static})


def test_the_clock_is_kept_apart_from_the_simulation():
    lanes = {"autoregressive": "autoregressive", "static-opt": "static:4", "oracle": "oracle"}
    result = evaluated(lanes, make_samples(6), clock=clock_of_two([10, 30], [1.0, 3.0], [0.5, 1.5]))
    assert result.value("clock_speedup", "static-opt") == pytest.approx(2.0)
    assert result.value("clock_latency_s", "static-opt") == pytest.approx(0.05)
    assert result.value("clock_cut", "autoregressive") == pytest.approx(-1.0)
    assert result.find("clock_noise", "autoregressive") is None  # of two prompts
    assert result.find("clock_speedup", "oracle") is None
    assert result.find("clock_speedup", "static-opt", "tests") is None


def test_the_clock_is_compared_with_the_simulation_of_the_same_prompts():
    """The clock takes a fifth less than simulated for drafting, on the two prompts that it timed."""
    samples = make_samples(6)
    replayed = replay_lane("static:4", samples[:2], COSTS)
    clock = clock_of_two(replayed.tokens, replayed.plain * 0.01, replayed.cost * 0.008)
    result = evaluated({"autoregressive": "autoregressive", "static-opt": "static:4"}, samples, clock=clock)
    plain, static = (result.find("clock_over_simulated", label) for label in result.lanes)
    assert plain.value == pytest.approx(0.0, abs=1e-9)
    assert static.value == pytest.approx(0.25) and static.low is None
    assert "| +25.0% |" in markdown(changed(make_evaluation(), *result.figures))


def test_validation_picks_the_best_static():
    samples = make_samples(6)
    best = best_of(static_lanes(), samples, COSTS)
    speedups = {lane: replay_lane(lane, samples, COSTS).speedup for lane in static_lanes()}
    assert speedups[best] == max(speedups.values())


def test_oracle_lengths():
    found = replace(make_evaluation(), figures=list(figures.oracle_lengths([sample("yyynyn")])))
    assert found.curve("oracle_iterations") == {1: 1, 3: 1} and found.find("oracle_sl").n == 2
    assert (found.value("oracle_sl"), found.value("oracle_sl_sd")) == (2.0, 1.0)
    assert found.curve("oracle_sl") == {0.025: 3.0, 0.975: 1.0}  # first and last place of twenty


def test_smoothed_costs_grow_and_are_medians():
    noisy = [replace(COSTS, verify_curve=[1.0, 1.3, 0.9, 1.2], target_s=0.01 * k, overhead=0.1 * k) for k in (1, 2, 6)]
    found = smooth_costs(noisy)
    assert found.verify_curve == sorted(found.verify_curve) and found.verify_curve[0] == 1.0
    assert (found.target_s, found.overhead) == pytest.approx((0.02, 0.2))


@pytest.mark.parametrize("n", [2, 12])
@pytest.mark.parametrize("make", [make_evaluation, make_drafts, partial(make_papers, {"code": "mbpp"})])
def test_a_table_explains_square_brackets_where_it_has_any(make, n):
    tables = tables_of(with_prompts(make(), n))
    bracketed = {table.title for table in tables if any("[" in cell.text for row in table.rows for cell in row)}
    assert {table.title for table in tables if "quare brackets" in table.note} == bracketed
    assert bool(bracketed) == (n >= ENOUGH_FOR_INTERVAL)


# -- drafts --------------------------------------------------------------------------------------------


def test_plain_decoding_on_the_clock_stands_beside_its_cost_curve():
    costs = replace(COSTS, target_s=0.02, overhead=0.25)
    readings = [{"lanes": {"autoregressive": {"decode_s": s, "tokens": n}}} for s, n in ((0.6, 20), (0.9, 20))]
    (found,) = plain_on_clock(readings, costs)
    assert found.value == pytest.approx(1.5 / (40 * 0.025))
    assert plain_on_clock([], costs) == []


def test_at_the_break_even_cost_the_best_static_gains_nothing():
    samples, costs = make_samples(6), replace(COSTS, first_step={"shallow": 0.07})
    sweep = [replay_lane(lane, samples, costs) for lane in static_lanes()]
    c = break_even_c(sweep)
    at = with_draft_step(costs, "shallow", c)
    best = max(replay_lane(lane, samples, at).speedup for lane in static_lanes())
    assert best == pytest.approx(1.0)


def test_prompt_lookup_is_not_asked_for_probabilities():
    policies = {parse_lane(lane).policy for lane in draft_candidates("ngram", [], certain=True)}
    assert policies == {"static", "heuristic", "throughput", "bandit"}
    assert "disco" in {parse_lane(lane).policy for lane in draft_candidates("shallow", ["disco"])}


def test_clocked_points_stand_beside_the_replay_of_the_same_prompts():
    samples, costs = make_samples(4), make_costs()
    sweep = [replay_lane(lane, samples, costs) for lane in static_lanes("shallow")]

    def reading(prompt: str, plain_s: float) -> dict:
        seconds = {"autoregressive": plain_s, "shallow/static:2": 1.0}
        return {"prompt": prompt, "lanes": {lane: {"decode_s": s, "tokens": 40} for lane, s in seconds.items()}}

    readings = [reading("p1", 2.0), reading("p2", 4.0), reading("p1", 3.0)]
    speedup, simulated = clocked_figures(sweep, figures.clock_table(readings, samples))
    assert (speedup.policy, speedup.metric, speedup.n) == ("static:2", "clock_speedup", 2)
    assert speedup[4:7] == pytest.approx((6.5 / 2.0, 2.5, 4.0))  # of the first prompt the median of two repeats
    assert simulated.value == pytest.approx(sweep[1].pick([1, 2]).speedup)
    assert not list(clocked_figures(sweep, figures.clock_table([], samples)))


# -- reports and files ---------------------------------------------------------------------------------


def test_models_of_ones_own_are_advised_by_a_folder_to_fill_in():
    """vLLM would look for a bare name on the Hub."""
    found = make_drafts()
    found.setting = replace(found.setting, target="mine")
    text = markdown(found)
    assert "vllm serve FOLDER/mine --" in text and "assistant_model" in text


def test_hostile_cells_stay_in_their_cells():
    result, label = make_evaluation(), "x | y\n# z"
    figures = [one._replace(policy=label) if one.policy == "heuristic" else one for one in result.figures]
    assert "| x \\| y # z |" in markdown(replace(result, figures=figures, lanes=result.lanes | {label: label}))


# -- options -------------------------------------------------------------------------------------------


IMPOSSIBLE = {
    "limit": ["x", 0, True, object()],
    "suite": [5, "poems"],
    "split": ["holdout"],
    "minutes": [float("nan"), -1],
    "lanes": [["static:99"], [], ["x" * 500]],
    "drafts": ["some"],
    "repeats": [0],
    "max_new_tokens": [1],
    "dtype": ["int3"],
    "clock_prompts": [-1],
    "zzz": [1],
}


@pytest.mark.parametrize("name, value", [(name, value) for name, values in IMPOSSIBLE.items() for value in values])
def test_impossible_options_are_refused_with_a_sentence(name, value):
    with pytest.raises(UserError, match=r"\.$"):
        options_from_dict({name: value})
