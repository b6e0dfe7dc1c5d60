"""Recorded runs: the list, loading, replay, and detection of stale ones."""

import json
import threading
from dataclasses import replace

import pytest

from decoding.backends import choose_backend
from decoding.backends.local import LocalBackend
from decoding.backends.recorded import (
    INDEX,
    MAX_BYTES,
    OF_LESSONS,
    RECORDINGS,
    RecordedBackend,
    order_index,
    plan_recording,
    read_index,
    stale_recordings,
    store_recording,
)
from decoding.backends.remote import RemoteBackend
from decoding.backends.space import SpaceBackend
from decoding.errors import UserError
from decoding.records.pairs import embedded_pairs, find_pair
from decoding.records.run_file import run_from_json, save_run
from decoding.records.suites import Prompt, load_lessons, load_showcase
from tests.fakes import check_stream, last_sentence
from tests.page_fakes import pair_in
from tests.runs import make_run


def prompt(name="fibonacci", **changes):
    about = dict(title="A title", shows="What to see.") | changes
    return replace(Prompt(name, "showcase", "test", "def fibonacci(n):\n", ""), **about)


@pytest.fixture
def pair(tmp_path):
    return pair_in(tmp_path)


def record(one, pair, folder):
    settings = plan_recording(one, pair, 88, 3)
    run = make_run(identifier=one.id, lanes=tuple(settings.lanes))
    store_recording(replace(run, settings=settings), one, pair, folder)


@pytest.fixture
def folder(tmp_path, pair):
    folder = tmp_path / "recordings"
    folder.mkdir()
    for name in ("fibonacci", "second"):
        record(prompt(name), pair, folder)
    return folder


def test_the_list_has_titles_and_order(folder):
    infos = RecordedBackend(folder).recordings()
    assert [info.id for info in infos] == ["fibonacci", "second"]
    assert {(info.title, info.shows) for info in infos} == {("A title", "What to see.")}
    assert infos[0].lanes == ["autoregressive", "static:5", "confidence:0.4", "oracle"]


def test_files_without_an_entry_are_listed_last_and_broken_ones_left_out(folder):
    save_run(make_run(), folder / "another.json")
    (folder / "broken.json").write_text("{")
    infos = RecordedBackend(folder).recordings()
    assert [info.id for info in infos] == ["fibonacci", "second", "another"]
    assert infos[-1].title == "def fibonacci(n):"


def test_what_the_list_lacks_or_has_too_much_hides_no_file(folder):
    (folder / "second.json").unlink()
    assert [info.id for info in RecordedBackend(folder).recordings()] == ["fibonacci"]
    (folder / INDEX).write_text("nonsense")
    assert [info.id for info in RecordedBackend(folder).recordings()] == ["fibonacci"]
    assert RecordedBackend(folder / "nowhere").recordings() == []


@pytest.mark.parametrize("name", ["../secret", "a/b", "", "x" * 65, "nothing", "fibonacci.json", "a\x00b", "index"])
def test_only_ids_of_recordings_are_opened(folder, name):
    (folder.parent / "secret.json").write_text("{}")
    with pytest.raises(UserError, match="There is no recording"):
        RecordedBackend(folder).load(name)


def test_the_file_name_is_the_id(folder):
    save_run(make_run(identifier="other-name"), folder / "renamed.json")
    assert RecordedBackend(folder).load("renamed").id == "renamed"


def test_the_recorded_settings_replay_at_once(folder):
    backend = RecordedBackend(folder)
    settings = backend.load("second").settings
    events = list(backend.compare(settings, threading.Event()))
    check_stream([replace(event, run="fibonacci") for event in events])
    assert run_from_json(json.dumps(events[-1].data["run"])).settings == settings


def test_other_settings_are_refused_with_a_sentence(folder):
    backend = RecordedBackend(folder)
    settings = backend.load("second").settings
    for other in (replace(settings, prompt="else"), replace(settings, seed=5)):
        events = list(backend.compare(other, threading.Event()))
        assert "Only recorded runs" in last_sentence(events)
    assert "without --recorded" in last_sentence(list(backend.run_job("evaluate", {}, threading.Event())))


def test_what_is_stale_is_reported(folder, pair, tmp_path):
    def stale(*prompts):
        return " ".join(stale_recordings(folder, list(prompts), pair))

    both = prompt(), prompt("second")
    assert stale(*both) == ""
    assert "third: not recorded" in stale(*both, prompt("third"))
    assert "second: no prompt" in stale(prompt())
    assert stale_recordings(folder, [prompt()], pair, [prompt("second")]) == []
    assert "has changed" in stale(prompt(), prompt("second", title="Another"))
    other_lanes = prompt("second", lanes=("autoregressive", "static:3"))
    assert "today it would be autoregressive, static:3" in stale(prompt(), other_lanes)
    assert "second: recorded with another seed." in stale(prompt(), prompt("second", settings={"seed": 7}))
    (tmp_path / "shallow" / "model.safetensors").write_bytes(b"other weights")
    assert "other weights of shallow" in stale(*both)


def test_a_policy_fitted_anew_makes_its_recordings_stale(folder, pair, tmp_path):
    one = prompt()
    (tmp_path / "shallow" / "policies").mkdir()
    (tmp_path / "shallow" / "policies" / "disco.json").write_text("{}")
    pair.fitted = {"shallow": ["disco"]}
    assert "today it would be autoregressive, static:5, disco, oracle" in stale_recordings(folder, [one], pair)[0]
    record(one, pair, folder)
    assert stale_recordings(folder, [one], pair) == ["second: no prompt has this id."]
    (tmp_path / "shallow" / "policies" / "disco.json").write_text("{ }")
    assert "other weights of shallow/disco" in stale_recordings(folder, [one], pair)[0]


def test_plans_take_what_was_fitted(pair):
    wanted = prompt(lanes=("autoregressive", "shallow/disco", "costaware", "ngram/static:5"))
    unfitted = ["autoregressive", "shallow/confidence:0.4", "confidence:0.4", "ngram/static:5"]
    assert plan_recording(wanted, pair, 8, 1).lanes == unfitted
    pair.fitted = {"shallow": ["disco"]}
    assert plan_recording(wanted, pair, 8, 1).lanes[1] == "shallow/disco"


def test_a_broken_recording_or_list_is_a_sentence(folder):
    backend = RecordedBackend(folder)
    settings = backend.load("second").settings
    (folder / "fibonacci.json").write_text("{")
    sentence = last_sentence(list(backend.compare(settings, threading.Event())))
    assert sentence.startswith("The recording fibonacci cannot be shown. ")
    assert sentence.endswith("python -m decoding recordings.")
    (folder / INDEX).write_text("[1]")
    with pytest.raises(UserError, match="is broken: write it again with python -m decoding recordings"):
        read_index(folder)


def test_the_list_follows_the_showcase(folder):
    order_index(folder, [prompt("second")])
    assert [info.id for info in RecordedBackend(folder).recordings()] == ["second"]
    assert not (folder / "fibonacci.json").exists()


def test_the_backend_follows_arguments_and_environment(monkeypatch):
    for name in ("SPECULOSCOPE_BACKEND", "SPECULOSCOPE_TOKEN", "SPACES_ZERO_GPU"):
        monkeypatch.delenv(name, raising=False)
    asked = ({}, {"url": "http://gpu:1"}, {"recorded": True}, {"url": "space:owner/name"})
    kinds = [LocalBackend, RemoteBackend, RecordedBackend, SpaceBackend]
    assert [type(choose_backend(**one)) for one in asked] == kinds
    monkeypatch.setenv("SPECULOSCOPE_BACKEND", "http://gpu:2")
    assert isinstance(choose_backend(), RemoteBackend)
    with pytest.raises(UserError, match="not the address"):
        choose_backend(url="gpu:1")
    for place in ("owner", "../x", "a/b/c", ""):
        with pytest.raises(UserError, match="is not a Space"):
            choose_backend(url=f"space:{place}")


def test_the_shipped_recordings_are_fresh_and_small():
    """Fails when weights, policies or prompts changed: run python -m decoding recordings (--lessons)."""
    for pair in embedded_pairs():
        assert stale_recordings(RECORDINGS, load_showcase(pair.chat), pair, load_showcase()) == []
    assert stale_recordings(OF_LESSONS, load_lessons(), find_pair("")) == []
    sizes = {path.name: path.stat().st_size for path in RECORDINGS.glob("*.json")}
    assert max(sizes.values()) <= MAX_BYTES, sizes
