"""Closed forms against published values, bounds and a simulation."""

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
def test_published_speedups_and_their_best_sls(alpha, c, gamma, factor):
    assert max(range(65), key=lambda sl: theory.speedup(alpha, sl, c)) == gamma
    assert theory.speedup(alpha, gamma, c) == pytest.approx(factor, abs=0.005)


@given(alphas, gammas)
def test_expected_tokens_is_the_geometric_sum(alpha, gamma):
    assert theory.expected_tokens(alpha, gamma) == pytest.approx(sum(alpha**k for k in range(gamma + 1)), rel=1e-6)


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_an_sl_helps_exactly_if_alpha_exceeds_c(alpha, c):
    """Leviathan et al. 2023, corollary 3.9."""
    if abs(alpha - c) > 1e-6:
        assert (max(theory.speedup(alpha, gamma, c) for gamma in range(1, 65)) > 1) == (alpha > c)


@given(alphas, gammas, st.floats(0, 1))
def test_speedup_with_free_checking_is_the_papers_improvement_factor(alpha, gamma, c):
    factor = theory.expected_tokens(alpha, gamma) / (gamma * c + 1.0)  # Leviathan et al. 2023, theorem 3.8
    assert theory.speedup(alpha, gamma, c) == pytest.approx(factor)


@pytest.mark.parametrize("alpha, gamma", [(1.5, 2), (0.5, -1)])
def test_impossible_arguments_are_refused(alpha, gamma):
    with pytest.raises(ValueError):
        theory.expected_tokens(alpha, gamma)
