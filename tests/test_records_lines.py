"""JSON Lines from which work resumes: what a kill, another key or another process leaves of them."""

from __future__ import annotations

import json

import pytest

from decoding.errors import UserError
from decoding.records.json_lines import Lines

KEY = {"target": "a", "of": 1}


def written(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_two_processes_may_add_to_one_file(tmp_path):
    path = tmp_path / "lines.jsonl"
    first = Lines(path, KEY)
    first.add({"n": 1})
    second = Lines(path, KEY)
    first.add({"n": 2})
    second.add({"n": 3})
    assert [record["n"] for record in written(path)[1:]] == [1, 2, 3]
    assert second.records == [{"n": 1}, {"n": 3}]


def test_another_key_is_refused_or_begins_again(tmp_path):
    path = tmp_path / "lines.jsonl"
    Lines(path, KEY).add({"n": 1})
    with pytest.raises(UserError, match="other work .different of."):
        Lines(path, KEY | {"of": 2})
    assert written(path) == [KEY, {"n": 1}]
    assert Lines(path, KEY | {"of": 2}, stale="restart").records == []
    assert written(path) == [KEY | {"of": 2}]
