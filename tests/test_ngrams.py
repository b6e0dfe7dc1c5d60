"""Counts of the target's own text: levels, collisions, files."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.errors import UserError
from decoding.lookahead.ngrams import CELLS, FILE, N_LEVELS, Ngrams, read_ngrams, write_ngrams

TEXT = [7, 8, 9] * 5 + [7, 8] + [4]
EMPTY = Ngrams(np.zeros(CELLS // 2, dtype=np.uint8))


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 2**20 - 2), max_size=30), max_size=4))
def test_a_level_is_at_least_the_logarithm_of_the_count(texts):
    ngrams = Ngrams.count(texts)
    for order in (1, 2, 3):
        for tokens, count in Counter(t for text in texts for t in zip(*(text[i:] for i in range(order)))).items():
            assert ngrams.level(*tokens) >= min(count.bit_length() - 1, 15)


def test_levels_of_a_guess():
    ngrams = Ngrams.count([TEXT])
    # 7 and 8 six times, 9 five times; (7, 8) six times, (8, 9) five times; 4 once, which is level 0
    assert ngrams.levels(7, 8, 9) == [2, 2, 2, 2, 2]
    assert ngrams.levels(7, 8, 4) == [0, 2, 0, 2, 0]
    assert ngrams.levels(-1, -1, 7)[0] == 2


def test_levels_along_a_text_are_those_of_each_guess():
    ngrams = Ngrams.count([TEXT])
    found = ngrams.levels_along([7], [8, 9, 7], [8, None, 4])
    assert found.tolist() == [ngrams.levels(-1, 7, 8), [0] * N_LEVELS, ngrams.levels(8, 9, 4)]
    assert EMPTY.levels_along([], [], []).shape == (0, N_LEVELS)


def test_few_other_sequences_seem_to_occur():
    rng = np.random.default_rng(0)
    text = rng.integers(0, 300, 60_000).tolist()
    ngrams = Ngrams.count([text])
    others = rng.integers(1000, 49_000, (2000, 3)).tolist()
    occupied = np.mean([ngrams.level(*tokens) > 0 for tokens in others])
    assert 0 < occupied < 0.03


def test_counts_come_back_as_they_were_written(tmp_path):
    assert read_ngrams(tmp_path) is None
    ngrams = Ngrams.count([TEXT])
    write_ngrams(tmp_path, ngrams)
    found = read_ngrams(tmp_path)
    assert found is not None and np.array_equal(found.packed, ngrams.packed)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(UserError, match=FILE):
        read_ngrams(tmp_path)
