"""``python -m decoding recordings``: made, checked, kept in order, and never over another pair's."""

from __future__ import annotations

from decoding.backends.recorded import RecordedBackend
from decoding.cli import recordings as recordings_module
from decoding.records.pairs import PairDescription
from decoding.records.suites import Prompt

from .commands import command


def test_recordings_are_made_checked_and_kept_in_order(tiny_pair, tmp_path, monkeypatch):
    target, draft = tiny_pair
    described = PairDescription("", "Tiny", "embedded", target, {"draft": draft}, "draft")
    prompts = [
        Prompt(id, "showcase", "test", text, "", title=id, shows="x", lanes=("autoregressive", "static:2", "disco"))
        for id, text in (("one", "hello "), ("two", "bye "))
    ]
    monkeypatch.setattr(recordings_module, "load_showcase", lambda chat=None: prompts)
    monkeypatch.setattr(recordings_module, "find_pair", lambda name: described)
    monkeypatch.setattr("decoding.engines.pair.find_pair", lambda name: described)
    words = ["recordings", "--folder", str(tmp_path / "recordings"), "--max-new-tokens", "8", "--repeats", "1"]
    assert command(*words, "--check")[0] == 1
    status, _, err = command(*words)
    assert status == 0, err
    assert command(*words, "--check")[:2] == (0, "All recordings are fresh.\n")
    backend = RecordedBackend(tmp_path / "recordings")
    assert [info.title for info in backend.recordings()] == ["one", "two"]
    assert [trace.lane for trace in backend.load("two").lanes] == ["autoregressive", "static:2", "confidence:0.4"]
    status, _, err = command(*words, "--only", "three")
    assert status == 2 and "one, two" in err
    described.name = "other"
    status, _, err = command(*words)
    assert status == 2 and "name another --folder" in err
    (tmp_path / "file").touch()
    status, _, err = command(*words[:2], str(tmp_path / "file"))
    assert status == 2 and "Cannot write into" in err
    described.kind = "preset"
    assert "models/" in command(*words)[2]
