"""What-if on synthetic runs; tests/test_core_whatif.py holds its iterations to the loop's, its figures to the run's."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.analysis import whatif
from decoding.lookahead.static import Static
from tests.runs import make_costs, make_run, untimed


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.floats(0.4, 1.0), st.floats(0.0, 1.2))
def test_no_static_and_no_oracle_beats_oracle_best(seed, match, c):
    run = untimed(make_run(seed=seed, match=match, c=c, n_tokens=60))  # it weighs the curves
    floor = whatif.simulate_lane(run, "oracle:best").speedup
    for lane, simulated in whatif.sweep(run, "static:1..20,oracle,oracle:5,autoregressive").items():
        assert simulated.speedup <= floor + 1e-9, lane


def test_policies_that_plan_are_not_asked_step_by_step(monkeypatch):
    """Forty lanes on 256 tokens take about 15 ms because static lanes do no work per drafted token."""
    monkeypatch.setattr(Static, "should_draft", lambda self, state: pytest.fail("asked step by step"))
    found = whatif.sweep(make_run(n_tokens=256), "static:1..20,confidence:0.05..1.0/0.05")
    assert len(found) == 40


def test_other_cost_curves():
    costs = make_costs()
    free = whatif.with_costs(costs, "shallow", draft_step=0.0, verify_curve=[1.0] * 21, overhead=0.0)
    assert (free.draft_step["shallow"], free.overhead, free.verify(30)) == (0.0, 0.0, 1.0)
    for c, o in product((None, 0.3), (None, 0.4)):
        changed = whatif.with_costs(costs, "shallow", draft_step=c, overhead=o)
        assert changed.draft_step["shallow"] == (c or 0.11) and changed.overhead == (o or 0.02)
