"""The report: loops, baselines, figures along a text; and whether the shipped cards belong to the shipped
weights.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from decoding.records.fingerprint import fingerprint
from decoding.records.pairs import embedded_pairs
from training.baselines import bits_per_byte, compressed_bits, five_gram_bits
from training.cards import suite_lines
from training.loops import distinct, inside_loops, runs_that_hold
from training.measure import Along, error_outside, summarise
from training.places import PAIR, PAIR_NAME


def test_a_loop_begins_with_its_second_period():
    text = [90, 91] + [1, 2, 3, 4] * 5 + [92]
    assert inside_loops(text) == [False] * 6 + [True] * 16 + [False]


@pytest.mark.parametrize(
    "text",
    [
        list(range(50)),
        [1, 2, 3] * 2 + list(range(10, 30)),
        [7] * 15,
        list(range(65)) * 3,
        [],
    ],
)
def test_what_is_no_loop(text):
    assert not any(inside_loops(text))


@pytest.mark.parametrize("text", [[7] * 16, [1, 2, 3, 4, 5, 6] * 3, list(range(64)) * 3])
def test_the_shortest_loops(text):
    assert sum(inside_loops(text)) == len(text) - len(set(text))


def test_distinct_counts_different_four_grams():
    assert distinct([[1, 2, 3, 4, 5]]) == 1.0
    assert distinct([[1, 2, 3, 4], [1, 2, 3, 4]]) == 0.5
    assert distinct([[1, 2]]) == 1.0


def test_runs_are_those_of_the_oracle():
    assert runs_that_hold([1, 1, 0, 0, 1, 0, 1]) == [2, 0, 1, 1]
    assert runs_that_hold([0]) == [0] and runs_that_hold([]) == []


def test_the_five_gram_learns_what_there_is_to_learn():
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 4, 50_000)
    assert five_gram_bits(noise, rng.integers(0, 4, 2_000), 16) == pytest.approx(2.0, abs=0.05)
    pattern = np.tile([1, 2, 3, 4, 5], 2_000)
    assert five_gram_bits(pattern, pattern[:500], 16) < 0.1
    assert five_gram_bits(pattern, np.array([9, 9, 9]), 16) > 4


def test_bits_per_byte():
    assert bits_per_byte(np.log(2), tokens=10, size=40) == pytest.approx(0.25)
    assert compressed_bits("abc" * 1000)["gzip"] < 0.2


def test_figures_inside_and_outside_of_loops():
    along = Along("code", np.array([1, 0, 1, 1], bool), np.array([0.8, 0.2, 1.0, 1.0]), np.array([0, 0, 1, 1], bool))
    row = summarise([along])
    assert (row["match"], row["match_outside"], row["match_inside"]) == (0.75, 0.5, 1.0)
    assert row["overlap_outside"] == pytest.approx(0.5)
    assert (row["oracle_sl"], row["oracle_sl_sd"]) == (1.5, 0.5)
    assert row["oracle_sl_outside"] == 1.0


def along(hits):
    hits = np.array(hits, bool)
    return Along("code", hits, np.ones(len(hits)), np.zeros(len(hits), bool))


def test_the_error_of_a_match_rate_is_that_over_texts():
    assert error_outside([along([1, 0])] * 5) == 0.0
    alone = [along([bit]) for bit in (1, 1, 1, 0)]
    assert error_outside(alone) == pytest.approx(np.std([1, 1, 1, 0], ddof=1) / 2)
    assert error_outside([along([bit] * 50) for bit in (1, 1, 1, 0)]) == pytest.approx(error_outside(alone))
    assert error_outside(alone[:1]) is None


@pytest.mark.parametrize(("error", "verdict"), [(0.01, "more than chance explains"), (0.1, "which chance may explain")])
def test_the_card_shows_whether_suites_differ(error, verdict):
    rows = {
        suite: {
            "match_outside": rate,
            "match_outside_error": error,
            "match_inside": 0.99,
            "loop_share": share,
            "oracle_sl": 10 * share,
        }
        for suite, rate, share in (("code", 0.8, 0.5), ("prose", 0.7, 0.9))
    }
    text = suite_lines(rows)
    assert f", {verdict}. " in text and "from 0.700 (prose) to 0.800 (code)" in text
    assert "Between 50% (code) and 90% (prose)" in text


def test_the_report_and_the_cards_belong_to_the_shipped_weights():
    pair = next(pair for pair in embedded_pairs() if pair.name == PAIR_NAME)
    marks = json.loads((PAIR / "report.json").read_text())["fingerprints"]
    assert marks == {
        "target": fingerprint(pair.target),
        "drafts": {name: fingerprint(place) for name, place in pair.drafts.items()},
    }, "stale: run `make refresh`"
    assert marks["target"] in (PAIR / "target" / "README.md").read_text()
    for name, mark in marks["drafts"].items():
        assert mark in (PAIR / "drafts" / name / "README.md").read_text()


def test_shipped_shards_and_sizes_keep_their_limits():
    shards = list(PAIR.rglob("*.safetensors"))
    assert shards and max(shard.stat().st_size for shard in shards) <= 9_500_000
    assert sum(shard.stat().st_size for shard in shards) <= 80_000_000
