"""Features of a draft step against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.loop.features import FeatureReader
from decoding.loop.sampling import softmax

ALL = frozenset({"p", "entropy", "top10"})


@given(st.integers(0, 10_000), st.integers(10, 300), st.floats(0.01, 60.0), st.booleans())
def test_features_are_those_of_the_softmax(seed, vocab, scale, masked):
    rng = np.random.default_rng(seed)
    row = (rng.normal(size=vocab) * scale).astype(np.float32)
    if masked:
        row[rng.permutation(vocab)[: vocab // 2]] = -np.inf
    token = int(row.argmax()) if not masked else int(rng.choice(np.flatnonzero(np.isfinite(row))))
    p, entropy, top10 = FeatureReader(vocab, masked).read(row, token, ALL)
    probabilities = softmax(row)
    positive = probabilities[probabilities > 0]
    assert p == pytest.approx(probabilities[token], rel=1e-4, abs=1e-30)
    assert entropy == pytest.approx(float(-(positive * np.log(positive)).sum()), abs=1e-3)
    np.testing.assert_allclose(top10, np.sort(probabilities)[::-1][:10], rtol=1e-4, atol=1e-7)
    assert top10.dtype == np.float32


def test_a_small_vocabulary_pads_the_top_ten():
    _, _, top10 = FeatureReader(3).read(np.zeros(3, dtype=np.float32), 0, ALL)
    np.testing.assert_allclose(top10, [1 / 3] * 3 + [0] * 7, rtol=1e-6)


def test_only_what_is_asked_for():
    row = np.arange(20, dtype=np.float32)
    assert FeatureReader(20).read(row, 19, frozenset({"p"}))[1:] == (0.0, None)


def test_the_margin_is_the_lead_over_the_strongest_rival():
    row = np.array([1.0, 4.0, -np.inf, 2.5], dtype=np.float32)
    before = row.copy()
    assert FeatureReader.margin(row, 1) == 1.5 and FeatureReader.margin(row, 0) == -3.0
    np.testing.assert_array_equal(row, before)
    assert FeatureReader.margin(np.array([2.0, -np.inf], dtype=np.float32), 0) == np.inf
