"""What-if's figures and refusals; tests/test_core_whatif.py holds its iterations to the loop's."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.analysis import whatif
from decoding.errors import UserError
from decoding.lookahead.static import Static
from tests.runs import make_costs, make_run, untimed


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.floats(0.4, 1.0), st.floats(0.0, 1.2))
def test_no_static_and_no_oracle_beats_oracle_best(seed, match, c):
    run = untimed(make_run(seed=seed, match=match, c=c, n_tokens=60))  # it weighs the curves
    floor = whatif.simulate_lane(run, "oracle:best").speedup
    for lane, simulated in whatif.sweep(run, "static:1..20,oracle,oracle:5,autoregressive").items():
        assert simulated.speedup <= floor + 1e-9, lane


def test_oracle_loses_with_a_slow_draft_and_oracle_best_does_not():
    run = make_run(c=1.5)
    assert whatif.simulate_lane(run, "oracle").speedup < 1
    assert whatif.simulate_lane(run, "oracle:best").speedup >= 1


def test_speedup_is_the_ratio_of_the_costs_written_out():
    run = untimed(make_run(n_tokens=40))
    found = whatif.simulate_lane(run, "static:4")
    costs = run.costs
    spent = sum(n * costs.draft_step["shallow"] + costs.verify(n + 1) + costs.overhead for _, n, _ in found.iterations)
    assert found.cost == pytest.approx(spent)
    assert found.speedup == pytest.approx(40 * (costs.verify_curve[0] + costs.overhead) / spent)
    assert whatif.simulate_lane(run, "autoregressive").speedup == pytest.approx(1.0)


def test_decisions_are_paid_for():
    run = make_run(n_tokens=60)
    costly = replace(run, costs=replace(run.costs, decision={"confidence": 0.2}))
    assert whatif.simulate_lane(costly, "confidence").speedup < whatif.simulate_lane(run, "confidence").speedup
    assert whatif.simulate_lane(costly, "static:5") == whatif.simulate_lane(run, "static:5")


def test_guesses_follow_the_text_and_then_the_tail():
    run = make_run(match=0.6)
    chain = run.chains["shallow"]
    replay = whatif.Replay(chain)
    start = next(at for at in range(len(chain.target)) if 0 < chain.holds(at) < 5 and at < 50)
    held = chain.holds(start)
    places = [replay.guess(start, index) for index in range(min(held + 4, replay.reach[start]))]
    said = [guesses.choice[at] for guesses, at in places]
    assert said[:held] == chain.target[start : start + held]
    assert said[held] == chain.along.choice[start + held] != chain.target[start + held]
    assert said[held + 1 :] == chain.tails[start + held].choice[:3]


def test_policies_that_plan_are_not_asked_step_by_step(monkeypatch):
    """Forty lanes on 256 tokens take about 15 ms because static lanes do no work per drafted token."""
    monkeypatch.setattr(Static, "should_draft", lambda self, state: pytest.fail("asked step by step"))
    found = whatif.sweep(make_run(n_tokens=256), "static:1..20,confidence:0.05..1.0/0.05")
    assert len(found) == 40


@pytest.mark.parametrize(
    "lane, word",
    [("other/static:5", "no recorded guesses of the draft other"), ("static:10000", "from 1 to 20"), ("disco", "fit")],
)
def test_what_cannot_be_simulated_is_refused_in_a_sentence(lane, word):
    with pytest.raises(UserError, match=word):
        whatif.simulate_lane(make_run(), lane)


def test_other_cost_curves():
    costs = make_costs()
    free = whatif.with_costs(costs, "shallow", draft_step=0.0, verify_curve=[1.0] * 21, overhead=0.0)
    assert (free.draft_step["shallow"], free.overhead, free.verify(30)) == (0.0, 0.0, 1.0)
    for c, o in product((None, 0.3), (None, 0.4)):
        changed = whatif.with_costs(costs, "shallow", draft_step=c, overhead=o)
        assert changed.draft_step["shallow"] == (c or 0.11) and changed.overhead == (o or 0.02)
