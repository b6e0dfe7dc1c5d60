"""AdaEDL: the entropy bound against a threshold that follows the acceptance rate."""

from __future__ import annotations

from math import sqrt

import pytest

from decoding.lookahead.adaedl import FIRST, GAMMA, STEP, AdaEdl
from decoding.lookahead.base import SL_CAP, DraftState, LaneContext
from decoding.records.trace import Costs

COSTS = Costs(target_s=0.005, verify_curve=[1.0], draft_step={"small": 0.1}, overhead=0.0)


def policy(wanted: float = 0.9) -> AdaEdl:
    made = AdaEdl(wanted)
    made.reset(LaneContext("small", COSTS, 100))
    return made


def threshold(made: AdaEdl) -> float:
    made.should_draft(DraftState(tokens=[1], entropy=[0.0]))
    return made.threshold


def test_it_stops_below_the_bound():
    made, state = policy(), DraftState()
    assert made.should_draft(state) and made.score is None
    edge = (1.0 - FIRST) ** 2 / GAMMA  # nats at which the bound is the threshold
    for entropy, goes_on in [(0.0, True), (edge - 0.01, True), (edge + 0.01, False)]:
        state.entropy.append(entropy)
        assert made.should_draft(state) is goes_on
        assert made.score == pytest.approx(1.0 - sqrt(GAMMA * entropy)) and made.threshold == FIRST


def test_too_little_accepted_raises_the_threshold_and_enough_lowers_it():
    made = policy(wanted=0.5)
    made.observe(4, 0)  # A = 0.25
    assert threshold(made) == pytest.approx(FIRST + STEP)
    made.observe(4, 4)  # A = 0.625
    assert threshold(made) == pytest.approx(FIRST)


def test_where_the_cap_ended_the_drafting_the_threshold_stays():
    made = policy()
    made.observe(SL_CAP, SL_CAP)
    assert threshold(made) == FIRST


def test_the_wanted_rate_is_what_the_loop_settles_at():
    """A draft whose guesses hold with the bound's probability: a higher target rate drafts less."""

    def settled(wanted: float) -> float:
        made = policy(wanted)
        for step in range(400):
            level = threshold(made)
            made.observe(10, round(10 * min(1.0, 0.4 + 0.6 * level)) - (step % 2))
        return threshold(made)

    assert settled(0.6) < settled(0.8) < settled(0.95)
