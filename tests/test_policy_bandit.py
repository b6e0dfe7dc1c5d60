"""The bandit: exponential weights over all SLs, updated with the loss that each would have had."""

from __future__ import annotations

import random

import numpy as np
import pytest

from decoding.lookahead.bandit import ARMS, FIRST_SL, Bandit
from decoding.lookahead.base import SL_CAP, LaneContext
from decoding.records.trace import Costs

COSTS = Costs(
    target_s=0.005, verify_curve=[1.0 + 0.02 * n for n in range(SL_CAP + 1)], draft_step={"small": 0.1}, overhead=0.02
)


def policy(costs: Costs = COSTS) -> Bandit:
    made = Bandit()
    made.reset(LaneContext("small", costs, 100))
    return made


def after(outcomes, costs: Costs = COSTS) -> int:
    made = policy(costs)
    for n_drafted, n_accepted in outcomes:
        made.observe(n_drafted, n_accepted)
        made.planned(0)
    return made.planned(0)


def test_it_starts_as_a_static_lane_does():
    assert policy().planned(0) == FIRST_SL


def test_the_loss_of_every_sl_by_hand():
    """6 drafted, 2 held: SL 1 would have given 2 tokens, SL 2 and every longer one 3."""
    made = policy()
    made.observe(6, 2)
    made.planned(0)
    lam = (COSTS.iteration(0, None) + COSTS.iteration(6, "small")) / (1 + 3)
    tokens = [2] + [3] * (SL_CAP - 1)
    expected = [COSTS.iteration(k, "small") - lam * n for k, n in zip(range(1, SL_CAP + 1), tokens)]
    assert np.allclose(made._losses, expected) and made._losses.argmin() == 1


def test_where_all_held_longer_ones_are_expected_to_hold_as_often_as_before():
    """5 drafted, all held: q is then 6/7, so SL 7 would have had 5 + q + q^2 accepted."""
    made = policy()
    made.observe(5, 5)
    made.planned(0)
    q, lam = 6 / 7, (COSTS.iteration(0, None) + COSTS.iteration(5, "small")) / (1 + 6)
    expected = COSTS.iteration(7, "small") - lam * (1 + 5 + q + q**2)
    assert made._losses[6] == pytest.approx(expected) and made._losses[4] > made._losses[6]


def test_it_drafts_more_where_guesses_hold_and_fewer_where_they_fail():
    long = after([(5, 5), (8, 8), (12, 12), (14, 14)])
    assert after([(5, 0)] * 6) < FIRST_SL < long


def test_it_finds_the_best_static_sl_of_random_text():
    """Each guess holds with probability 0.8: in the long run the time per token is the best static SL's, within 5%."""
    rng = random.Random(3)
    made, spent, tokens, stays = policy(), 0.0, 0, []
    for _ in range(1500):
        hold = 0
        while rng.random() < 0.8:
            hold += 1
        n = made.planned(0)
        made.observe(n, min(n, hold))
        spent, tokens = spent + COSTS.iteration(n, "small"), tokens + 1 + min(n, hold)
        stays.append(n)
    rates = [COSTS.iteration(int(k), "small") / sum(0.8**i for i in range(k + 1)) for k in ARMS]
    assert spent / tokens < 1.05 * min(rates)
    assert abs(np.mean(stays[-200:]) - (np.argmin(rates) + 1)) <= 2
