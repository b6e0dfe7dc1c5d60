"""The prompt suites as shipped, and how they are loaded."""

from __future__ import annotations

from collections import Counter

import pytest

from decoding.errors import UserError
from decoding.lookahead.lanes import parse_lane
from decoding.records import suites as prompts
from decoding.records.suites import SPLITS, SUITES, load_showcase, load_suite

LEAST = {"train": 120, "validation": 40, "test": 80}


@pytest.mark.parametrize("suite", SUITES)
def test_every_split_is_large_enough_and_nothing_is_in_two(suite):
    found = load_suite(suite)
    counts = Counter(prompt.split for prompt in found)
    assert all(counts[split] >= LEAST[split] for split in SPLITS)
    assert len({prompt.id for prompt in found}) == len({prompt.prompt for prompt in found}) == len(found)
    assert {prompt.suite for prompt in found} == {suite}
    assert all(prompt.prompt.strip() and prompt.source for prompt in found)


@pytest.mark.parametrize("suite", ["code", "prose", "tests"])
def test_a_file_gives_prompts_to_one_split_only(suite):
    splits = {}
    for prompt in load_suite(suite):
        splits.setdefault(prompt.source, set()).add(prompt.split)
    assert all(len(found) == 1 for found in splits.values())


def test_all_takes_turns_between_the_suites():
    assert [prompt.suite for prompt in load_suite("all", "test", 8)] == list(SUITES) * 2


def test_limit_keeps_the_order_of_the_file():
    assert load_suite("code", "test", 5) == load_suite("code", "test")[:5]


@pytest.mark.parametrize("arguments", [("cod",), ("code", "dev"), ("code", "test", 0), ("../code",)])
def test_what_is_not_there_is_refused_in_a_sentence(arguments):
    with pytest.raises(UserError):
        load_suite(*arguments)


def test_a_broken_line_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(prompts, "FOLDER", tmp_path)
    (tmp_path / "code.jsonl").write_text('{"id": "a", "suite": "code"}\n')
    with pytest.raises(UserError, match="line 1"):
        load_suite("code")


def test_showcase_prompts_have_titles_and_lanes_that_parse():
    found = load_showcase()
    assert len(found) >= 12 and all(prompt.title and prompt.shows for prompt in found)
    assert len({prompt.title for prompt in found}) == len(found)
    for lane in (lane for prompt in found for lane in prompt.lanes):
        parse_lane(lane)
    assert len(load_showcase(True)) >= 12 and any("does not pay" in prompt.shows for prompt in load_showcase(True))
    assert found == load_showcase(True) + load_showcase(False)
