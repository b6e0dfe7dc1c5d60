"""The lookahead policies in isolation, and the features that they read."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from decoding.lookahead.adaedl import FIRST, GAMMA, STEP, AdaEdl
from decoding.lookahead.bandit import ARMS, FIRST_SL, Bandit
from decoding.lookahead.base import SL_CAP, DraftState, LaneContext, LookaheadPolicy
from decoding.lookahead.confidence import Confidence
from decoding.lookahead.costtree import EXPECTED, CostTree
from decoding.lookahead.entropy import Entropy
from decoding.lookahead.heuristic import Heuristic
from decoding.lookahead.oracle import Oracle
from decoding.lookahead.throughput import PRIOR, START, WINDOW, Throughput
from decoding.loop.features import FeatureReader
from decoding.loop.sampling import softmax
from decoding.records.trace import Chain, Costs, Guesses
from tests.runs import make_costs

COSTS = make_costs(0.1, 0.02, drafts=["small"])


def started(policy: LookaheadPolicy, costs: Costs = COSTS, match: Sequence[bool] = ()) -> LookaheadPolicy:
    """``match``: whether the guess for each token of a text holds."""
    chain = Chain("small", [1] * len(match), Guesses([*map(int, match)], [], []), {})
    policy.reset(LaneContext("small", costs, len(match), chain))
    return policy


def plans(policy: LookaheadPolicy, outcomes: Sequence[tuple[int, int]], costs: Costs = COSTS) -> list[int]:
    """What ``policy`` plans at first and after each (drafted, accepted)."""
    planned = [started(policy, costs).planned(0)]
    for outcome in outcomes:
        policy.observe(*outcome)
        planned.append(policy.planned(0))
    return planned


def test_the_heuristic_starts_at_5_and_goes_up_by_2_or_down_by_1():
    assert plans(Heuristic(), [(5, 5), (7, 7), (9, 3), (8, 0), (7, 7)]) == [5, 7, 9, 8, 7, 9]


EDGE = (1.0 - FIRST) ** 2 / GAMMA  # nats at which AdaEDL's bound is its first threshold


@pytest.mark.parametrize(
    "policy, threshold, passing, failing, score_of",
    [
        (Confidence(0.4), 0.4, 0.4, 0.39, float),
        (Entropy(0.3), 0.3, 0.5, 0.7, lambda nats: sqrt(0.15 * nats)),
        (AdaEdl(0.9), FIRST, EDGE - 0.01, EDGE + 0.01, lambda nats: 1.0 - sqrt(GAMMA * nats)),
    ],
    ids=["confidence", "entropy", "adaedl"],
)
def test_a_policy_goes_on_while_the_last_token_passes_its_threshold(policy, threshold, passing, failing, score_of):
    state = DraftState()
    assert started(policy).should_draft(state) and policy.score is None
    for value, goes_on in ((passing, True), (failing, False), (passing, True)):
        getattr(state, *policy.needs).append(value)
        assert policy.should_draft(state) is goes_on
        assert (policy.score, policy.threshold) == (pytest.approx(score_of(value)), threshold)
        assert goes_on is (policy.score <= threshold if policy.stops_above else policy.score >= threshold)


def test_the_oracle_drafts_what_holds_and_its_cap_is_its_own():
    policy = started(Oracle(), match=[True] * 3 + [False] + [True] * 40)
    assert [policy.planned(at) for at in range(5)] == [3, 2, 1, 0, 40] and policy.cap is None
    assert Oracle(20).cap == 20


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.floats(0.01, 1.5))
def test_the_best_oracle_is_the_cheapest_of_all_splits(match, c):
    holds = [len(list(itertools.takewhile(bool, match[at:]))) for at in range(len(match))]
    costs = replace(COSTS, draft_step={"small": c})
    policy = started(Oracle("best"), costs, match)

    def price(start, choose):
        if start >= len(match):
            return 0.0
        return min(
            costs.iteration(n, "small") + price(start + n + 1, choose)
            for n in choose(start, min(holds[start], len(match) - start - 1))
        )

    floor = price(0, lambda start, most: range(most + 1))
    assert price(0, lambda start, most: [policy.planned(start)]) == pytest.approx(floor)


# -- features of a draft step

ALL = frozenset({"p", "entropy", "top10"})


def read(needs: frozenset[str], row: np.ndarray, token: int, compiled: bool = True, masked: bool = False) -> DraftState:
    reader, state = FeatureReader(needs, len(row), masked), DraftState()
    if not compiled:
        reader._readout = None
    reader.read(state, row, token)
    return state


@pytest.mark.parametrize("compiled", [True, False])
@given(st.integers(0, 10_000), st.integers(3, 300), st.floats(0.01, 60.0), st.booleans())
@example(seed=0, vocab=10, scale=1.0, masked=True)  # fewer tokens than ten are left
@example(seed=0, vocab=3, scale=1.0, masked=False)  # or there
def test_features_are_those_of_the_softmax(compiled, seed, vocab, scale, masked):
    rng = np.random.default_rng(seed)
    row = (rng.normal(size=vocab) * scale).astype(np.float32)
    if masked:
        row[rng.permutation(vocab)[: vocab // 2]] = -np.inf
    token = int(row.argmax()) if not masked else int(rng.choice(np.flatnonzero(np.isfinite(row))))
    before = row.copy()
    found = read(ALL, row, token, compiled, masked)
    (p,), (entropy,), (top10,) = found.p, found.entropy, found.top10
    probabilities = softmax(row)
    positive = probabilities[probabilities > 0]
    assert p == pytest.approx(probabilities[token], rel=1e-4, abs=1e-30)
    assert entropy == pytest.approx(float(-(positive * np.log(positive)).sum()), abs=1e-3)
    expected = np.pad(np.sort(probabilities)[::-1][:10], (0, max(0, 10 - vocab)))
    np.testing.assert_allclose(top10, expected, rtol=1e-4, atol=1e-7)
    assert top10.dtype == np.float32
    np.testing.assert_array_equal(row, before)


def test_only_what_is_asked_for():
    row = np.arange(20, dtype=np.float32)
    found = read(frozenset({"p"}), row, 19)
    assert found.p and found.entropy == found.top10 == []


@pytest.mark.parametrize("compiled", [True, False])
def test_the_margin_is_the_lead_over_the_strongest_rival(compiled):
    row = np.array([1.0, 4.0, -np.inf, 2.5], dtype=np.float32)
    before = row.copy()

    def margin(logits: np.ndarray, token: int) -> float:
        return read(frozenset({"margin"}), logits, token, compiled).margin[-1]

    assert margin(row, 1) == 1.5 and margin(row, 0) == -3.0
    np.testing.assert_array_equal(row, before)
    assert margin(np.array([2.0, -np.inf], dtype=np.float32), 0) == np.inf


# -- AdaEDL: the entropy bound against a threshold that follows the acceptance rate


def threshold(made: AdaEdl) -> float:
    made.should_draft(DraftState(tokens=[1], entropy=[0.0]))
    return made.threshold


def test_too_little_accepted_raises_the_threshold_and_enough_lowers_it_but_not_where_the_cap_ended_the_drafting():
    made = started(AdaEdl(0.5))
    for outcome, level in (((4, 0), FIRST + STEP), ((SL_CAP, SL_CAP), FIRST + STEP), ((4, 4), FIRST)):
        made.observe(*outcome)
        assert threshold(made) == pytest.approx(level)
    for held, level in ((0, 1.0), (4, 0.0)):
        for _ in range(60):
            made.observe(4, held)
        assert threshold(made) == level


def test_costtree_by_hand():
    costs = make_costs(0.1, 0.05, drafts=["small"], first_step={"small": 0.1}, overhead=0.0)
    made, state, hits = started(CostTree(), costs), DraftState(), EXPECTED
    spent, gained = made._spent, made._gained
    for parents, path in (([-1, 0], [0, 1]), ([-1, 0, 0], [0]), ([], []), ([], [])):
        state.begin(0)
        made.should_read(state, 0.9)
        assert (made.score, made.threshold) == pytest.approx((0.9 * hits, (0.1 + 0.1 + 0.05) * gained / spent))
        state.tokens.append(1)
        made.should_read(state, 0.5)
        assert (made.score, made.threshold) == pytest.approx((0.5 * hits, (0.1 + 0.05) * gained / spent))
        n, state.parents, state.steps = len(parents), parents, [(True, node, 0.5) for node in (-1, 0)]
        made.observe_tree(state, path)
        spent += 0.05 * (costs.iteration(n, "small", n_steps=2) - spent)
        gained += 0.05 * (len(path) + 1 - gained)
        for held in (True, len(path) > 1) if n else (True,):  # the places that had guesses; without any it is hopeful
            hits += 0.05 * (held - hits)


# -- the bandit: exponential weights over all SLs, updated with the loss that each would have had


def test_the_loss_of_every_sl_by_hand():
    """6 drafted, 2 held: SL 1 would have given 2 tokens, SL 2 and every longer one 3."""
    made = started(Bandit())
    made.observe(6, 2)
    made.planned(0)
    lam = (COSTS.iteration(0, None) + COSTS.iteration(6, "small")) / (1 + 3)
    tokens = [2] + [3] * (SL_CAP - 1)
    expected = [COSTS.iteration(k, "small") - lam * n for k, n in zip(range(1, SL_CAP + 1), tokens)]
    assert np.allclose(made._losses, expected) and made._losses.argmin() == 1
    assert (made._held, made._judged) == (1 + 2, 2 + 3), "the three after the mistake say nothing"


def test_where_all_held_longer_ones_are_expected_to_hold_as_often_as_before():
    """5 drafted, all held: q is then 6/7, so SL 7 would have had 5 + q + q^2 accepted."""
    made = started(Bandit())
    made.observe(5, 5)
    made.planned(0)
    q, lam = 6 / 7, (COSTS.iteration(0, None) + COSTS.iteration(5, "small")) / (1 + 6)
    expected = COSTS.iteration(7, "small") - lam * (1 + 5 + q + q**2)
    assert made._losses[6] == pytest.approx(expected) and made._losses[4] > made._losses[6]


def test_it_starts_as_a_static_lane_and_drafts_more_where_guesses_hold_and_fewer_where_they_fail():
    failing, holding = plans(Bandit(), [(5, 0)] * 6), plans(Bandit(), [(5, 5), (8, 8), (12, 12), (14, 14)])
    assert failing[0] == holding[0] == FIRST_SL and failing[-1] < FIRST_SL < holding[-1]


def test_it_finds_the_best_static_sl_of_random_text():
    """Each guess holds with probability 0.8: in the long run the time per token is the best static SL's, within 5%."""
    rng = random.Random(3)
    made, spent, tokens, stays = started(Bandit()), 0.0, 0, []
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


# -- throughput: history of acceptance by place, and measured costs

FLAT = [1.0] * (SL_CAP + 1)
COSTLY = [1.0 + 0.5 * n for n in range(SL_CAP + 1)]


def after(outcomes, c: float = 0.1, v: list[float] = FLAT) -> int:
    return plans(Throughput(), outcomes, replace(COSTS, verify_curve=v, draft_step={"small": c}, overhead=0.0))[-1]


@pytest.mark.parametrize("n", [0, 10])
def test_the_formula_by_hand(n):
    """One guess held and the next did not, ten times: p_1 near 1, p_2 near 0. Before that, all hold as often."""
    share = (n + PRIOR * START) / (2 * n + PRIOR)
    rates = [(n + PRIOR * share) / (n + PRIOR), PRIOR * share / (n + PRIOR), *[share] * (SL_CAP - 2)]
    throughput, held, expected = [], 1.0, 1.0
    for sl, rate in enumerate(rates, start=1):
        held *= rate
        expected += held
        throughput.append(expected / (1.0 + 0.1 * sl))
    assert after([(5, 1)] * n) == throughput.index(max(throughput)) + 1
    assert (after([(5, 1)] * n) == 1) == (n > 0)


def test_guesses_that_hold_make_it_longer_and_costly_checks_shorter():
    held, failed = [(6, 6)] * 8, [(6, 0)] * 8
    assert after(failed) == 1 < after([]) < after(held)
    assert after(held, v=COSTLY) < after(held)
    assert after(held, c=0.6) < after(held)


def test_what_lies_behind_the_window_is_forgotten():
    assert after([(6, 0)] * 50 + [(6, 6)] * WINDOW) == after([(6, 6)] * WINDOW)


def test_stepwise_and_planned_are_one():
    made = started(Throughput())
    made.observe(6, 3)
    state = DraftState()
    while made.should_draft(state):
        state.tokens.append(1)
    assert len(state.tokens) == made.planned(0)
