"""Cost curves: read from the loop itself, fitted so that more work never takes less time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.analysis.metrics import predicted_speedup, speedup
from decoding.analysis.run_costs import _corrected
from decoding.analysis.steadiness import contradictions
from decoding.comparison import costs
from decoding.comparison.costs import Timer, fit_steps, fit_verification, measure_costs
from decoding.comparison.prepare import prepare
from decoding.errors import UserError
from decoding.records.request import CompareRequest
from decoding.records.trace import Run

from .runs import make_costs, make_run
from .toy import ToyModel, ToyPair

SHORTENED = ("BUDGET_S", "ROUNDS", "SPARSE", "LONG")
WHOLE = {name: getattr(costs, name) for name in SHORTENED}  # as a user has it: other tests measure for a moment
SECONDS = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=5)


@given(st.dictionaries(st.integers(2, 40), SECONDS, max_size=12), SECONDS)
def test_a_fitted_curve_never_falls(seconds, plain):
    v = fit_verification({**seconds, 1: plain})
    assert v[0] == 1.0 and len(v) == max([1, *seconds])
    assert all(before <= after * (1 + 1e-12) for before, after in zip(v, v[1:]))


def test_costs_that_grow_are_kept_and_joined_by_lines():
    assert fit_verification({1: [2.0], 2: [2.5], 5: [4.0, 3.0, 99.0]}) == pytest.approx([1.0, 1.25, 1.5, 1.75, 2.0])


def test_a_contradiction_is_the_deepest_fall():
    assert costs.contradiction({1: [1.0], 2: [2.0], 3: [2.1]}) == 0.0
    assert costs.contradiction({1: [1.0], 2: [2.0], 3: [1.8], 4: [1.5]}) == pytest.approx(0.25)


@given(st.floats(1e-5, 1e-2), st.floats(0.0, 1e-2))
def test_steps_on_a_line_give_the_line(step, first):
    found = fit_steps({n: [first + n * step] for n in (1, 2, 4, 8, 20)})
    assert found == pytest.approx((step, first), rel=1e-6, abs=1e-9)


@given(st.dictionaries(st.integers(1, 20), SECONDS, min_size=1, max_size=8))
def test_a_step_is_never_free_and_drafting_never_earns_time(seconds):
    step, first = fit_steps(seconds)
    assert step > 0.0 and first >= 0.0


def test_guesses_that_are_made_at_once_may_be_free():
    assert fit_steps({1: [3.0], 4: [2.8]}, at_once=True) == (0.0, pytest.approx(2.9))
    assert fit_steps({1: [3.0], 4: [3.3]}, at_once=True) == (pytest.approx(0.1), pytest.approx(2.9))


def test_readings_weigh_as_much_as_they_say():
    """Many readings of a pass more than few, short chains more than long ones; the slowest twentieth not at all."""
    assert fit_verification({1: [1.0], 2: [3.0], 3: [2.0] * 3}) == pytest.approx([1.0, 2.25, 2.25])
    assert fit_steps({1: [2.0], 2: [3.0], 20: [30.0]}) == pytest.approx((1.390, 0.535), abs=1e-3)
    assert costs._trimmed_mean([(1.0, 19), (100.0, 1)]) == 1.0


def test_a_plain_pass_is_timed_after_another_one():
    timer = Timer(ToyPair(), ["small"], [1, 2, 3])
    assert len(list(timer.read("small", [0, 3, 0, 0]))) == 4 and len(timer.plain) == 1


def test_a_draft_that_never_proposes_costs_nothing():
    assert fit_steps({}) == (0.0, 0.0)


@pytest.fixture(autouse=True)
def whole(monkeypatch):
    for name, value in WHOLE.items():
        monkeypatch.setattr(costs, name, value)


def test_a_check_is_timed_after_the_draft_steps_that_it_checks(monkeypatch):
    """CPU caches differ after draft steps and after a target pass: a target pass must be timed after each of them."""
    monkeypatch.setattr(costs, "BUDGET_S", 1e3)  # however busy the machine
    monkeypatch.setattr(costs, "ROUNDS", (1, 1))
    passes: list[str] = []  # the model of each one
    lengths = set()

    def extend(model, ids, branches=None):
        if model.name == "target":
            assert passes[len(passes) - len(ids) + 1 :] == ["small"] * (len(ids) - 1)
            lengths.add(len(ids))
        passes.append(model.name)
        return model._read(ids)

    monkeypatch.setattr(ToyModel, "extend", extend)
    measure_costs(ToyPair(agree=0.9), ["small"], [1, 2, 3])
    assert lengths == {*range(1, 22), 32, 48, 65}


@pytest.mark.parametrize("drafts", [["small", "ngram"], ["ngram"], []])
def test_costs_are_positive_and_cover_every_draft(drafts):
    costs = measure_costs(ToyPair(), drafts, [1, 2, 3])
    assert costs.target_s > 0 and costs.overhead > 0 and set(costs.draft_step) == set(drafts)
    v = costs.verify_curve
    assert len(v) == 65 and v == sorted(v) and v[0] == 1.0
    assert set(costs.first_step) == set(drafts) and all(first >= 0 for first in costs.first_step.values())


def test_a_decision_costs_what_the_policy_computes():
    prepared = prepare(CompareRequest("abc", lanes=["oracle", "confidence:0.5"]), ToyPair())
    oracle, confidence = (
        costs.measure_decision(prepared, lane, make_costs(drafts=["small"])) for lane in prepared.lanes
    )
    assert oracle == 0.0 < confidence


def test_a_slow_target_is_measured_at_fewer_lengths(monkeypatch):
    monkeypatch.setattr("decoding.comparison.costs.BUDGET_S", 1e-9)
    pair = ToyPair()
    costs = measure_costs(pair, ["small"], [1, 2, 3])
    assert len(costs.verify_curve) == 65 and {8, 10, 11, 12}.isdisjoint(pair.target.passes)


def test_a_text_that_nearly_fills_the_context():
    costs = measure_costs(ToyPair(target_length=12, draft_length=12), ["small"], [1, 2, 3] * 3)
    assert costs.verify_curve[0] == 1.0 and costs.draft_step["small"] > 0


def test_rounds_that_nobody_asks_for_are_not_measured():
    pair = ToyPair()
    rounds = Timer(pair, ["small"], [1, 2, 3]).rounds()
    next(rounds)
    passes = len(pair.target.passes)
    rounds.close()
    assert len(pair.target.passes) == passes


def test_readings_that_contradict_each_other_are_reported_where_the_fit_hides_them():
    run = make_run(lanes=("autoregressive",), n_tokens=20)
    assert not contradictions(run)
    run.costs.contradiction = 0.4
    assert contradictions(run) == ["longer checks were timed as cheaper than shorter ones"]


LANES = ("autoregressive", "static:5", "confidence:0.4", "heuristic", "oracle")


def slowed(**factors: float) -> Run:
    """A run whose lanes took so many times as long: by policy."""
    run = make_run(lanes=LANES)
    for trace in run.lanes:
        factor = factors.get(trace.policy, 1.0)
        for part in (one for it in trace.repeats for one in (it.draft_s, it.verify_s, it.policy_s, it.rest_s)):
            part[:] = [factor * seconds for seconds in part]
    return run


def test_a_lane_that_is_faster_than_its_passes_allow_or_far_from_its_costs_is_reported():
    def said(**factors: float) -> list[str]:
        return contradictions(slowed(**factors))

    assert said() == []
    (quick,) = said(confidence=0.2)
    assert quick.startswith("Confidence 0.4 came out ") and quick.endswith(" tokens per pass of the target")
    (slow,) = said(heuristic=1.6)
    assert slow.startswith("Heuristic came out ") and "by the measured costs" in slow
    static, others = said(static=1.6)[0], said(static=1.6)[1:]
    assert static.startswith("Static 5 came out ") and others[-1] == "2 other lanes likewise"


def test_a_lane_that_this_version_does_not_know_is_reported_by_its_own_name():
    run = slowed(heuristic=1.6)
    trace = run.lanes[3]
    names = {"shallow/later:3": "shallow/later:3", "shallow/heuristic": "Heuristic · shallow"}
    names["shallow/confidence:1E-1"] = "shallow/confidence:1E-1"  # an argument of another version
    for lane, name in names.items():
        trace.lane, trace.policy = lane, lane.partition("/")[2].partition(":")[0]
        (said,) = contradictions(run)
        assert said.startswith(f"{name} came out ")
    trace.lane = "shallow/confidence:0.4<script>"
    with pytest.raises(UserError, match="The threshold must be a number"):
        contradictions(run)


def test_a_text_along_which_checks_grow_for_all_lanes_contradicts_nothing():
    run = make_run(lanes=("autoregressive", "static:10", "confidence:0.4", "oracle"))
    for trace in run.lanes[1:]:
        for repeat in trace.repeats:
            repeat.verify_s[:] = [1.5 * seconds for seconds in repeat.verify_s]
    oracle = run.lanes[3]
    assert predicted_speedup(run, oracle) > 1.3 * speedup(run, oracle).median and contradictions(run) == []


def test_a_pass_over_more_tokens_is_never_cheaper_by_the_iterations_of_a_run():
    v = _corrected(make_costs(0.1), {2: [1.8] * 4, 3: [1.2] * 8, 6: [1.5] * 3})
    assert v[0] == 1.0 and v[1] == v[2] == pytest.approx(1.4, abs=1e-3) and v[5] == pytest.approx(1.5)
    assert v == sorted(v)
    assert _corrected(make_costs(0.1), {2: [0.8] * 5})[1] == pytest.approx(1.0, abs=1e-4), "nor cheaper than one"
