"""The lookahead policies in isolation."""

from __future__ import annotations

import itertools
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.lookahead.base import DraftState, LaneContext
from decoding.lookahead.confidence import Confidence
from decoding.lookahead.entropy import Entropy
from decoding.lookahead.heuristic import Heuristic
from decoding.lookahead.oracle import BestOracle, Oracle
from decoding.records.trace import Costs

COSTS = Costs(target_s=0.005, verify_curve=[1 + 0.02 * n for n in range(21)], draft_step={"small": 0.1}, overhead=0.02)


def context(holds=None, n_tokens=None, costs=COSTS):
    return LaneContext("small", costs, 100, holds, n_tokens)


def test_the_heuristic_starts_at_5_and_goes_up_by_2_or_down_by_1():
    policy = Heuristic()
    policy.reset(context())
    planned = [policy.planned(0)]
    for drafted, accepted in [(5, 5), (7, 7), (9, 3), (8, 0), (7, 7)]:
        policy.observe(drafted, accepted)
        planned.append(policy.planned(0))
    assert planned == [5, 7, 9, 8, 7, 9]
    policy.reset(context())
    assert policy.planned(0) == 5


def test_confidence_goes_on_while_the_last_token_was_sure():
    policy, state = Confidence(0.4), DraftState()
    assert policy.should_draft(state) and policy.score is None
    state.p.append(0.4)
    assert policy.should_draft(state) and (policy.score, policy.threshold) == (0.4, 0.4)
    state.p.append(0.39)
    assert not policy.should_draft(state)


def test_entropy_stops_above_its_threshold():
    policy, state = Entropy(), DraftState()
    assert policy.should_draft(state) and policy.stops_above
    state.entropy.append(0.5)  # sqrt(0.15 * 0.5) = 0.27
    assert policy.should_draft(state)
    state.entropy.append(0.7)  # 0.32
    assert not policy.should_draft(state)
    assert policy.score == pytest.approx(sqrt(0.15 * 0.7)) and policy.threshold == 0.3


def test_the_oracle_drafts_what_holds_and_its_cap_is_its_own():
    policy = Oracle()
    policy.reset(context(holds=[3, 2, 1, 0, 40].__getitem__))
    assert [policy.planned(at) for at in range(5)] == [3, 2, 1, 0, 40] and policy.cap is None
    assert Oracle(20).cap == 20


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.floats(0.01, 1.5))
def test_the_best_oracle_is_the_cheapest_of_all_splits(match, c):
    holds = [len(list(itertools.takewhile(bool, match[at:]))) for at in range(len(match))]
    costs = Costs(target_s=1.0, verify_curve=COSTS.verify_curve, draft_step={"small": c}, overhead=0.02)
    policy = BestOracle()
    policy.reset(LaneContext("small", costs, len(match), lambda at: holds[at], len(match)))

    def price(start, choose):
        if start >= len(match):
            return 0.0
        return min(
            costs.iteration(n, "small") + price(start + n + 1, choose)
            for n in choose(start, min(holds[start], len(match) - start - 1))
        )

    floor = price(0, lambda start, most: range(most + 1))
    assert price(0, lambda start, most: [policy.planned(start)]) == pytest.approx(floor)
