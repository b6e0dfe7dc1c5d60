"""The throughput policy: history of acceptance by place, and measured costs."""

from __future__ import annotations

import pytest

from decoding.lookahead.base import SL_CAP, LaneContext
from decoding.lookahead.throughput import PRIOR, START, WINDOW, Throughput
from decoding.records.trace import Costs

FLAT = [1.0] * (SL_CAP + 1)
COSTLY = [1.0 + 0.5 * n for n in range(SL_CAP + 1)]


def policy(c: float = 0.1, v: list[float] = FLAT) -> Throughput:
    made = Throughput()
    made.reset(LaneContext("small", Costs(target_s=0.005, verify_curve=v, draft_step={"small": c}, overhead=0.0), 100))
    return made


def after(outcomes, **costs) -> int:
    made = policy(**costs)
    for n_drafted, n_accepted in outcomes:
        made.observe(n_drafted, n_accepted)
    return made.planned(0)


def test_before_anything_was_seen_it_takes_the_best_sl_for_the_share_that_it_starts_from():
    cost = [n * 0.1 + 1.0 for n in range(SL_CAP + 1)]
    best = max(range(1, SL_CAP + 1), key=lambda n: sum(START**k for k in range(n + 1)) / cost[n])
    assert after([]) == best


def test_the_formula_by_hand():
    """One guess held and the next did not, ten times: p_1 near 1, p_2 near 0."""
    share = (10 + PRIOR * START) / (20 + PRIOR)
    rates = [(10 + PRIOR * share) / (10 + PRIOR), PRIOR * share / (10 + PRIOR), *[share] * (SL_CAP - 2)]
    throughput, held, expected = [], 1.0, 1.0
    for n, rate in enumerate(rates, start=1):
        held *= rate
        expected += held
        throughput.append(expected / (1.0 + 0.1 * n))
    assert after([(5, 1)] * 10) == throughput.index(max(throughput)) + 1 == 1


def test_guesses_that_hold_make_it_longer_and_costly_checks_shorter():
    held, failed = [(6, 6)] * 8, [(6, 0)] * 8
    assert after(failed) == 1 < after([]) < after(held)
    assert after(held, v=COSTLY) < after(held)
    assert after(held, c=0.6) < after(held)


def test_what_lies_behind_the_window_is_forgotten():
    assert after([(6, 0)] * 50 + [(6, 6)] * WINDOW) == after([(6, 6)] * WINDOW)


def test_a_lane_starts_without_memory():
    made = policy()
    for _ in range(20):
        made.observe(8, 0)
    made.reset(
        LaneContext("small", Costs(target_s=0.005, verify_curve=FLAT, draft_step={"small": 0.1}, overhead=0.0), 100)
    )
    assert made.planned(0) == after([])


@pytest.mark.parametrize("accepted", [0, 3, 6])
def test_stepwise_and_planned_are_one(accepted):
    from decoding.lookahead.base import DraftState

    made = policy()
    made.observe(6, accepted)
    state = DraftState()
    while made.should_draft(state):
        state.tokens.append(1)
    assert state.n_drafted == made.planned(0)
