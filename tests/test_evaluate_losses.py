"""The parts of a policy's simulated time, and the cost of its errors."""

from dataclasses import replace

import pytest

from decoding.evaluation.figures import policy_figures
from decoding.evaluation.prediction import correct, losses, replay_judge
from decoding.evaluation.results import ALL, PERFECT_JUDGE
from decoding.evaluation.samples import replay_lane
from tests.evaluations import make_samples, sample
from tests.runs import make_costs

COSTS = make_costs()


def figures(lanes: dict[str, str], samples, costs=COSTS) -> dict[tuple[str, str], float]:
    """(label, metric) -> value over all suites."""
    found = policy_figures(lanes, samples, costs)
    return {(one.policy, one.metric): one.value for one in found if one.suite == ALL}


def test_the_parts_of_the_time_add_up_to_the_latency():
    costs = replace(COSTS, decision={"confidence": 0.03}, first_step={"shallow": 0.05})
    lanes = ("static:4", "confidence:0.4", "oracle", "autoregressive")
    found = figures({lane: lane for lane in lanes}, make_samples(6), costs)
    for lane in lanes:
        whole = sum(found[lane, part] for part in ("draft_s", "check_s", "decision_s", "loop_s"))
        assert whole == pytest.approx(found[lane, "latency_s"]), lane
        assert 0 <= found[lane, "too_long_s"] < whole


def test_errors_are_reported_by_kind():
    """yyyynyyyyy under static:1: starts 0, 2, 5 and 7 stop too soon; the draft at 4 is thrown away."""
    samples = [sample("yyyynyyyyy")]
    short, long, oracle = (losses(replay_lane(lane, samples, COSTS)) for lane in ("static:1", "static:9", "oracle"))
    assert short["too_soon"] == pytest.approx(4 / 10)
    assert short["too_long_s"] == pytest.approx((0.11 + 0.016) * COSTS.target_s / 10)
    assert long["too_soon"] == 0 and long["too_long_s"] > short["too_long_s"]
    assert oracle["too_soon"] == oracle["too_long_s"] == 0
    assert losses(replay_lane("static:20", [sample("y" * 40)], COSTS))["too_soon"] == 0, "its cap ended it"


def test_a_perfect_classifier_lies_between_the_policies_and_the_oracle():
    found = figures({"static-opt": "static:4", "same": "static:4", "oracle": "oracle"}, make_samples(9))
    judge, static, oracle = (found[label, "latency_s"] for label in (PERFECT_JUDGE, "static-opt", "oracle"))
    assert oracle < judge < static
    assert found[PERFECT_JUDGE, "cut"] == pytest.approx(1 - judge / static) and ("same", "cut") not in found


def test_a_perfect_classifier_drafts_as_long_as_guesses_hold():
    """Forty in a row: all but the last token, which the limit leaves to the target, in one iteration."""
    (simulated,) = replay_judge([sample("y" * 40)], COSTS).simulated
    assert simulated.iterations == [(0, 39, 39)]


def test_errors_undone_one_kind_at_a_time():
    """yynyyyyy under static:1 and static:9, token by token."""
    samples, costs = [sample("yynyyyyy")], make_costs()

    def price(*lengths: int) -> float:
        return sum(costs.iteration(n, "shallow", "static") for n in lengths) * costs.target_s / 8

    short, long = (correct(replay_lane(lane, samples, costs)) for lane in ("static:1", "static:9"))
    assert short["as_it_is_s"] == pytest.approx(price(1, 1, 1, 1, 0))  # starts 0, 2, 3, 5, 7
    assert short["never_too_late_s"] == pytest.approx(short["as_it_is_s"])
    assert short["never_too_soon_s"] == pytest.approx(price(3, 4))  # up to the failure at 2, then to the text's end
    assert long["as_it_is_s"] == pytest.approx(price(7, 4))  # the limit leaves no more room
    assert long["never_too_soon_s"] == pytest.approx(long["as_it_is_s"])
    assert long["never_too_late_s"] == long["no_errors_s"] == pytest.approx(price(3, 4))


def test_what_holds_a_policy_back():
    costs = replace(COSTS, decision={"confidence": 0.03})
    lanes = ("autoregressive", "static:4", "confidence:0.6", "oracle")
    found = figures({lane: lane for lane in lanes}, make_samples(9), costs)
    assert {label for label, metric in found if metric == "no_errors_s"} == {"static:4", "confidence:0.6"}
    for lane in ("static:4", "confidence:0.6"):  # the others make no errors
        as_it_is = found[lane, "as_it_is_s"]
        assert as_it_is == pytest.approx(found[lane, "latency_s"])
        assert found[lane, "free_checks_s"] < as_it_is
        one_kind = min(found[lane, "never_too_soon_s"], found[lane, "never_too_late_s"])
        assert found[lane, "no_errors_s"] < one_kind <= as_it_is
    assert found["static:4", "no_errors_s"] == pytest.approx(found[PERFECT_JUDGE, "latency_s"])
    assert found["static:4", "free_decisions_s"] == found["static:4", "as_it_is_s"]
    assert found["confidence:0.6", "free_decisions_s"] < found["confidence:0.6", "as_it_is_s"]
