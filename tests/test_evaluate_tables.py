"""Evaluation figures from known chains: prediction quality, intervals, tables, advice, reports, result files."""

import json
from dataclasses import replace

import numpy as np
import pytest

from decoding.analysis.whatif import with_costs
from decoding.comparison.cost_curves import smooth_costs
from decoding.errors import UserError
from decoding.evaluation.classify import always_accept, auc_of, best_f1, predict
from decoding.evaluation.drafts import break_even_c, candidates, clocked_sls, plain_on_clock
from decoding.evaluation.files import markdown, ship, tables_of, write_report
from decoding.evaluation.options import EvaluationOptions, check_options, options_from_dict
from decoding.evaluation.report import evaluation_tables, to_csv, to_markdown
from decoding.evaluation.results import ALL, evaluation_from_dict, load_evaluation, result_to_json, save_result
from decoding.evaluation.samples import best_of, replay_lane, static_lanes
from decoding.evaluation.statistics import Bootstrap, clock_noise
from decoding.evaluation.tables import ClockTable, Entry, match_rates, oracle_lengths, pareto, policy_results
from decoding.lookahead.lanes import parse_lane
from tests.evaluations import make_drafts, make_evaluation, make_samples, sample
from tests.runs import make_costs

COSTS = make_costs()


# -- prediction ----------------------------------------------------------------------------------------


def test_static_policies_predict_drafted_to_hold_and_the_bonus_position_to_fail():
    """yyyynyyy under static:2, at most three tokens per iteration: starts 0, 3 and 5; the last can draft two.

    0: y y drafted and held, bonus position 2 predicted to fail but held.
    3: y held, n (position 4) drafted and failed.
    5: y y held (positions 5 and 6); position 7 is the target's by the token limit: nothing was decided there.
    """
    found = predict(replay_lane("static:2", [sample("yyyynyyy")], COSTS), [sample("yyyynyyy")])
    assert found.precision == pytest.approx(5 / 6)
    assert found.recall == pytest.approx(5 / 6)
    assert found.f1 == pytest.approx(5 / 6)
    assert found.auc is None


def test_scored_policies_predict_the_token_they_stopped_on_to_fail():
    """ynyyyyyy with the draft unsure exactly at the wrong guess: confidence predicts every decided token right."""
    sure = [0.9, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]
    found = predict(replay_lane("confidence:0.5", [sample("ynyyyyyy", sure)], COSTS), [sample("ynyyyyyy", sure)])
    assert (found.f1, found.auc) == (1.0, 1.0)


def test_an_unsure_draft_that_holds_is_a_missed_one():
    doubt = [0.9, 0.1, 0.9, 0.9]
    found = predict(replay_lane("confidence:0.5", [sample("yyyy", doubt)], COSTS), [sample("yyyy", doubt)])
    assert found.precision == 1.0 and found.recall == pytest.approx(1 / 2)


def test_where_its_cap_ends_the_drafting_a_policy_has_not_decided():
    doubt = [0.9, 0.1, 0.9, 0.9]
    replayed = replace(replay_lane("confidence:0.5", [sample("yyyy", doubt)], COSTS), cap=2)
    assert predict(replayed, [sample("yyyy", doubt)]).recall == 1.0


def test_the_oracle_foresees_everything():
    samples = make_samples(8)
    assert predict(replay_lane("oracle", samples, COSTS), samples).f1 == 1.0


def test_always_accept_has_the_match_rate_as_precision():
    samples = make_samples(6)
    found = always_accept(samples)
    rate = match_rates(samples)[ALL]
    assert found.precision == pytest.approx(rate) and found.recall == 1.0
    assert found.f1 == pytest.approx(2 * rate / (1 + rate)) and found.auc == 0.5


def test_auc_of_scores_is_the_chance_that_a_right_guess_scores_higher():
    one = sample("yyn", [0.9, 0.3, 0.5])
    assert auc_of("confidence", [one]) == pytest.approx(0.5)
    assert auc_of("static", [one]) is None
    assert auc_of("confidence", [sample("yyy")]) is None  # only one class


# -- intervals -----------------------------------------------------------------------------------------


def test_a_ratio_of_proportional_sums_has_no_spread():
    spent = np.array([1.0, 5.0, 2.0, 9.0])
    found = Bootstrap(4).ratio(2 * spent, spent)
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    covered = 0
    for seed in range(200):
        below = rng.uniform(1, 2, 40)
        found = Bootstrap(40, draws=300, seed=seed).ratio(below * rng.normal(2.0, 0.4, 40), below)
        covered += found.low <= 2.0 <= found.high
    assert 0.88 <= covered / 200 <= 0.99


def test_a_paired_cut_is_narrower_than_its_parts():
    rng = np.random.default_rng(0)
    theirs = rng.uniform(1, 20, 60)
    ours = theirs * rng.normal(0.9, 0.01, 60)
    found = Bootstrap(60).cut(ours, theirs)
    assert found.value == pytest.approx(0.1, abs=0.01) and found.high - found.low < 0.02


# -- tables --------------------------------------------------------------------------------------------


def test_rows_are_the_sums_over_prompts():
    samples = make_samples(9)
    entries = [Entry("autoregressive", "autoregressive"), Entry("static-opt", "static:4"), Entry("oracle", "oracle")]
    results = {entry.label: entry for entry in policy_results(entries, samples, COSTS)}
    replayed = replay_lane("static:4", samples, COSTS)
    row = results["static-opt"].rows[ALL]
    tokens = sum(one.n_tokens for one in samples)
    assert row.target_passes == sum(one.target_passes for one in replayed.simulated)
    assert row.discard_rate == pytest.approx(sum(o.draft_passes - o.accepted for o in replayed.simulated) / tokens)
    assert row.verification_rate == pytest.approx(row.target_passes / tokens)
    assert row.simulated.speedup.value == pytest.approx(replayed.plain.sum() / replayed.cost.sum())
    assert row.simulated.latency_s == pytest.approx(replayed.cost.sum() * COSTS.target_s / tokens)
    assert row.simulated.cut is None and results["autoregressive"].rows[ALL].simulated.cut.value < 0
    assert results["oracle"].rows[ALL].simulated.cut.value == pytest.approx(
        1 - results["oracle"].rows[ALL].simulated.latency_s / row.simulated.latency_s
    )
    assert row.prediction.f1 < 1 and results["autoregressive"].rows[ALL].prediction is None


def test_suites_add_up_to_all():
    samples = make_samples(12)
    row = policy_results([Entry("static-opt", "static:3")], samples, COSTS)[0].rows
    suites = [suite for suite in row if suite != ALL]
    assert len(suites) == 3
    assert sum(row[suite].target_passes for suite in suites) == row[ALL].target_passes
    assert sum(row[suite].simulated.prompts for suite in suites) == 12


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


def test_a_report_says_what_is_left_to_gain():
    text = markdown(make_evaluation())
    assert "Static-opt's F1 is " in text and "behind the oracle: it still drafts" in text


def test_the_clock_is_kept_apart_from_the_simulation():
    samples = make_samples(6)
    clock = ClockTable(
        ["p0", "p1"],
        ["code", "prose"],
        np.array([10, 30]),
        {"autoregressive": np.array([1.0, 3.0]), "static:4": np.array([0.5, 1.5])},
    )
    entries = [Entry("autoregressive", "autoregressive"), Entry("static-opt", "static:4"), Entry("oracle", "oracle")]
    plain, static, oracle = policy_results(entries, samples, COSTS, clock=clock)
    assert static.rows[ALL].clock.speedup.value == pytest.approx(2.0)
    assert static.rows[ALL].clock.latency_s == pytest.approx(0.05)
    assert plain.rows[ALL].clock.cut.value == pytest.approx(-1.0)
    assert plain.rows[ALL].clock.cut_noise > 0 and static.rows[ALL].clock.cut_noise is None
    assert oracle.rows[ALL].clock is None and static.rows["tests"].clock is None


def test_the_clock_is_compared_with_the_simulation_of_the_same_prompts():
    """The clock takes a fifth less than simulated for drafting, on the two prompts that it timed."""
    samples = make_samples(6)
    replayed = replay_lane("static:4", samples[:2], COSTS)
    clock = ClockTable(
        ["p0", "p1"],
        ["code", "prose"],
        replayed.tokens,
        {"autoregressive": replayed.plain * 0.01, "static:4": replayed.cost * 0.008},
    )
    entries = [Entry("autoregressive", "autoregressive"), Entry("static-opt", "static:4")]
    result = replace(make_evaluation(), policies=policy_results(entries, samples, COSTS, clock=clock))
    plain, static = (one.rows[ALL].clock.over_simulated for one in result.policies)
    assert plain.value == pytest.approx(0.0, abs=1e-9)
    assert static.value == pytest.approx(0.25) and static.low == pytest.approx(0.25)
    assert "+25.0% [+25.0%, +25.0%]" in markdown(result)


def test_validation_picks_the_best_static():
    samples = make_samples(6)
    best = best_of(static_lanes(), samples, COSTS)
    speedups = {lane: replay_lane(lane, samples, COSTS).speedup for lane in static_lanes()}
    assert speedups[best] == max(speedups.values())


def test_oracle_lengths():
    found = oracle_lengths([sample("yyynyn")])[ALL]
    assert found.iterations == 2 and found.histogram == [(1, 1), (3, 1)]
    assert (found.mean, found.sd) == (2.0, 1.0)
    assert found.by_place[0] == 3.0 and found.by_place[-1] == 1.0 and found.by_place[5] is None


def test_pareto_of_static_trades_discards_for_passes():
    points = pareto(static_lanes(), make_samples(6), COSTS, None)
    assert points[0].discard_rate < points[-1].discard_rate
    assert points[0].verification_rate > points[9].verification_rate


def test_smoothed_costs_grow_and_are_medians():
    noisy = [replace(COSTS, v=[1.0, 1.3, 0.9, 1.2], target_s=0.01 * k, o=0.1 * k) for k in (1, 2, 6)]
    found = smooth_costs(noisy)
    assert found.v == sorted(found.v) and found.v[0] == 1.0
    assert (found.target_s, found.o) == pytest.approx((0.02, 0.2))


# -- drafts --------------------------------------------------------------------------------------------


def test_plain_decoding_on_the_clock_stands_beside_its_cost_curve():
    costs = replace(COSTS, target_s=0.02, o=0.25)
    readings = [{"lanes": {"autoregressive": {"decode_s": s, "tokens": n}}} for s, n in ((0.6, 20), (0.9, 20))]
    assert plain_on_clock(readings, costs) == pytest.approx(1.5 / (40 * 0.025))
    assert plain_on_clock([], costs) is None


def test_at_the_break_even_cost_the_best_static_gains_nothing():
    samples, costs = make_samples(6), replace(COSTS, first={"shallow": 0.07})
    sweep = [replay_lane(lane, samples, costs) for lane in static_lanes()]
    c = break_even_c(sweep, costs, "shallow")
    at = with_costs(costs, "shallow", c=c)
    best = max(replay_lane(lane, samples, at).speedup for lane in static_lanes())
    assert best == pytest.approx(1.0)


def test_prompt_lookup_is_not_asked_for_probabilities():
    policies = {parse_lane(lane).policy for lane in candidates("ngram", [], certain=True)}
    assert policies == {"static", "heuristic", "throughput", "bandit"}
    assert "disco" in {parse_lane(lane).policy for lane in candidates("shallow", ["disco"])}


def test_clocked_points_stand_beside_the_replay_of_the_same_prompts():
    samples, costs = make_samples(4), make_costs()
    sweep = [replay_lane(lane, samples, costs) for lane in static_lanes()]
    timed = samples[1:3]
    readings = [
        {"prompt": one.prompt, "lanes": {"autoregressive": {"decode_s": plain}, "shallow/static:2": {"decode_s": 1.0}}}
        for one, plain in zip([*timed, timed[0]], (2.0, 4.0, 3.0))
    ]
    found = clocked_sls("shallow", sweep, samples, readings)
    assert list(found) == [2]
    assert found[2].prompts == 2 and found[2].speedup.value == pytest.approx(9.0 / 3.0)
    assert found[2].speedup.low == pytest.approx(2.5) and found[2].speedup.high == pytest.approx(4.0)
    assert found[2].simulated == pytest.approx(sweep[1].pick([1, 2]).speedup)
    assert clocked_sls("shallow", sweep, samples, []) == {}


# -- reports and files ---------------------------------------------------------------------------------


def test_reports_hold_every_policy(tmp_path):
    result = make_evaluation()
    text = markdown(result)
    assert all(f"| {entry.label}" in text for entry in result.policies)
    csv = to_csv(evaluation_tables(result))
    assert csv.count("\n") > 20 and "# Latency and speedup" in csv
    written = write_report(result, tmp_path)
    assert [path.name for path in written] == ["report.md", "tables.csv", "result.json"]
    assert load_evaluation(written[-1]) == result


def test_the_drafts_report_ends_with_what_to_copy():
    text = markdown(make_drafts())
    assert "vllm serve" in text and "assistant_model" in text
    assert all(len(row) == len(table.columns) for table in tables_of(make_drafts()) for row in table.rows)
    assert all(len(row) == len(table.columns) for table in evaluation_tables(make_evaluation()) for row in table.rows)


def test_hostile_cells_stay_in_their_cells():
    table = replace(evaluation_tables(make_evaluation())[0], columns=["a"], rows=[["x | y\n# z"]])
    assert "| x \\| y # z |" in to_markdown("t", [], [table])


def test_shipped_results_are_named_after_their_pair(tmp_path):
    result = make_evaluation()
    path, report = ship(result, tmp_path)
    assert path.name == "synthetic.json" and report.name == "synthetic.md"
    assert load_evaluation(path) == result


def test_results_on_the_papers_data_sets_ship_beside_the_pairs_own(tmp_path):
    result = make_evaluation()
    result.setting.prompts = {"humaneval": 2, "gsm8k": 1}
    assert ship(result, tmp_path)[0].name == "synthetic-papers.json"


@pytest.mark.parametrize("text", ["", "null", "[1]", "[" * 100_000, '{"schema": "speculoscope.evaluation/1"}', "NaN"])
def test_damaged_results_are_refused_in_a_sentence(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UserError, match="not an evaluation"):
        load_evaluation(path)


def test_results_come_back_from_plain_data(tmp_path):
    result = make_evaluation()
    assert evaluation_from_dict(json.loads(result_to_json(result))) == result
    with pytest.raises(UserError):
        evaluation_from_dict({"policies": float("nan")})
    with pytest.raises(UserError, match="Cannot write"):
        (tmp_path / "file").write_text("")
        save_result(result, tmp_path / "file" / "x.json")


# -- options -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"limit": "x"},
        {"limit": 0},
        {"limit": True},
        {"suite": 5},
        {"suite": "poems"},
        {"split": "holdout"},
        {"zzz": 1},
        {"minutes": float("nan")},
        {"minutes": -1},
        {"lanes": ["static:99"]},
        {"lanes": []},
        {"lanes": ["x" * 500]},
        {"drafts": "some"},
        {"repeats": 0},
        {"max_new_tokens": 1},
        {"dtype": "int3"},
        {"clock_prompts": -1},
        {"limit": object()},
    ],
)
def test_impossible_options_are_refused_with_a_sentence(options):
    with pytest.raises(UserError) as caught:
        options_from_dict(options)
    assert str(caught.value).endswith(".")


def test_the_default_options_are_possible():
    assert check_options(EvaluationOptions()) == options_from_dict({})
