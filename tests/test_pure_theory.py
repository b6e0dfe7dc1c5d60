"""Closed forms against published values, bounds and a simulation."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.analysis import theory

alphas = st.floats(0, 1)
gammas = st.integers(0, 40)


@pytest.mark.parametrize(
    "alpha, c, gamma, factor",
    [(0.6, 0.1, 3, 1.67), (0.8, 0.05, 8, 3.09), (0.8, 0.1, 6, 2.47), (0.8, 0.2, 4, 1.87), (0.9, 0.02, 19, 6.37)],
)
def test_best_sl_and_its_factor(alpha, c, gamma, factor):
    assert theory.best_sl(alpha, c) == gamma
    assert theory.improvement_factor(alpha, gamma, c) == pytest.approx(factor, abs=0.005)


def test_expected_tokens_published_value():
    assert theory.expected_tokens(0.8, 5) == pytest.approx(3.689, abs=5e-4)


@given(alphas, gammas)
def test_expected_tokens_is_the_geometric_sum(alpha, gamma):
    assert theory.expected_tokens(alpha, gamma) == pytest.approx(sum(alpha**k for k in range(gamma + 1)), rel=1e-6)


def test_expected_tokens_against_a_simulation():
    rng, rounds = random.Random(1), 40_000
    total = 0
    for _ in range(rounds):
        held = 0
        while held < 6 and rng.random() < 0.7:
            held += 1
        total += held + 1
    assert total / rounds == pytest.approx(theory.expected_tokens(0.7, 6), rel=0.02)


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_an_sl_helps_exactly_if_alpha_exceeds_c(alpha, c):
    if abs(alpha - c) > 1e-6:
        assert (theory.best_sl(alpha, c) > 0) == (alpha > c)


@given(st.floats(0.05, 0.95), st.floats(0.01, 0.6), gammas)
def test_no_sl_beats_the_best(alpha, c, gamma):
    best = theory.improvement_factor(alpha, theory.best_sl(alpha, c), c)
    assert theory.improvement_factor(alpha, gamma, c) <= best + 1e-12


@given(alphas, gammas, st.floats(0, 1))
def test_speedup_with_free_checking_is_the_improvement_factor(alpha, gamma, c):
    assert theory.speedup(alpha, gamma, c) == pytest.approx(theory.improvement_factor(alpha, gamma, c))


@given(alphas, st.integers(1, 20), st.floats(0, 0.1), st.floats(0, 0.05))
def test_break_even_c_gains_nothing(alpha, gamma, slope, o):
    def v(n):
        return 1 + slope * (n - 1)

    c = theory.break_even_c(alpha, gamma, v, o)
    assert theory.speedup(alpha, gamma, c, v, o) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: theory.expected_tokens(1.5, 2),
        lambda: theory.expected_tokens(0.5, -1),
        lambda: theory.break_even_c(0.5, 0),
    ],
)
def test_impossible_arguments_are_refused(call):
    with pytest.raises(ValueError):
        call()
