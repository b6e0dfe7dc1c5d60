"""The parts of a policy's simulated time, and the cost of its errors."""

from dataclasses import replace

import pytest

from decoding.evaluation.corrections import correct, correct_all
from decoding.evaluation.losses import replay_judge
from decoding.evaluation.results import ALL
from decoding.evaluation.tables import Entry, judge_timings, policy_results
from tests.evaluations import make_samples, sample
from tests.runs import make_costs

COSTS = make_costs()


def test_the_parts_of_the_time_add_up_to_the_latency():
    costs = replace(COSTS, decision={"confidence": 0.03}, first={"shallow": 0.05})
    samples = make_samples(6)
    for lane in ("static:4", "confidence:0.4", "oracle", "autoregressive"):
        row = policy_results([Entry(lane, lane)], samples, costs)[0].rows[ALL]
        parts = row.losses
        whole = parts.draft_s + parts.check_s + parts.decision_s + parts.loop_s
        assert whole == pytest.approx(row.simulated.latency_s), lane
        assert 0 <= parts.too_long_s < whole


def test_errors_are_reported_by_kind():
    """yyyynyyyyy under static:1: starts 0, 2, 5 and 7 stop too soon; the draft at 4 is thrown away."""
    samples = [sample("yyyynyyyyy")]
    lanes = ("static:1", "static:9", "oracle")
    short, long, oracle = (policy_results([Entry(lane, lane)], samples, COSTS)[0].rows[ALL].losses for lane in lanes)
    assert short.too_soon == pytest.approx(4 / 10)
    assert short.too_long_s == pytest.approx((0.11 + 0.016) * COSTS.target_s / 10)
    assert long.too_soon == 0 and long.too_long_s > short.too_long_s
    assert oracle.too_soon == oracle.too_long_s == 0


def test_a_perfect_classifier_lies_between_the_policies_and_the_oracle():
    samples = make_samples(9)
    entries = [Entry("static-opt", "static:4"), Entry("oracle", "oracle")]
    judge = judge_timings(entries, samples, COSTS)[ALL]
    static, oracle = (one.rows[ALL].simulated for one in policy_results(entries, samples, COSTS))
    assert oracle.latency_s < judge.latency_s < static.latency_s
    assert judge.cut.value == pytest.approx(1 - judge.latency_s / static.latency_s)


def test_a_perfect_classifier_drafts_as_long_as_guesses_hold():
    """Forty in a row: all but the last token, which the limit leaves to the target, in one iteration."""
    (simulated,) = replay_judge([sample("y" * 40)], COSTS).simulated
    assert simulated.iterations == [(0, 39, 39)]


def test_errors_undone_one_kind_at_a_time():
    """yynyyyyy under static:1 and static:9, token by token."""
    samples, costs = [sample("yynyyyyy")], make_costs()

    def price(*lengths: int) -> float:
        return sum(costs.iteration(n, "shallow", "static") for n in lengths) * costs.target_s / 8

    short, long = (correct(lane, samples, costs, None) for lane in ("static:1", "static:9"))
    assert short.as_it_is_s == pytest.approx(price(1, 1, 1, 1, 0))  # starts 0, 2, 3, 5, 7
    assert short.never_too_late_s == pytest.approx(short.as_it_is_s)
    assert short.never_too_soon_s == pytest.approx(price(3, 4))  # up to the failure at 2, then to the text's end
    assert long.as_it_is_s == pytest.approx(price(7, 4))  # the limit leaves no more room
    assert long.never_too_soon_s == pytest.approx(long.as_it_is_s)
    assert long.never_too_late_s == long.no_errors_s == pytest.approx(price(3, 4))


def test_what_holds_a_policy_back():
    costs = replace(COSTS, decision={"confidence": 0.03})
    samples = make_samples(9)
    entries = [Entry(lane, lane) for lane in ("autoregressive", "static:4", "confidence:0.6", "oracle")]
    found = correct_all(entries, samples, costs, None)
    assert set(found) == {"static:4", "confidence:0.6"}  # the others make no errors
    judge = judge_timings(entries, samples, costs)[ALL]
    for label, row in zip(("static:4", "confidence:0.6"), (entries[1], entries[2]), strict=True):
        one = found[label]
        assert one.as_it_is_s == pytest.approx(policy_results([row], samples, costs)[0].rows[ALL].simulated.latency_s)
        assert one.free_checks_s < one.as_it_is_s
        assert one.no_errors_s < min(one.never_too_soon_s, one.never_too_late_s) <= one.as_it_is_s
    assert found["static:4"].no_errors_s == pytest.approx(judge.latency_s)
    assert found["static:4"].free_decisions_s == found["static:4"].as_it_is_s
    assert found["confidence:0.6"].free_decisions_s < found["confidence:0.6"].as_it_is_s
