"""Jobs and what can fail in them, without a worker process: each fault ends with a clear sentence."""

from __future__ import annotations

import sys
import threading

import pytest

from decoding.backends import choose_backend
from decoding.backends.jobs import Jobs
from decoding.backends.local import _Job
from decoding.backends.recorded import INDEX, RecordedBackend, describe_recording, read_index, write_index
from decoding.errors import UserError, is_out_of_memory, sentence_of
from decoding.records.events import guarded
from decoding.records.pairs import find_pair
from decoding.records.run_file import save_run
from tests.fakes import OutOfMemoryError, last_sentence
from tests.runs import make_run


@pytest.mark.parametrize(
    "error, words",
    [
        (UserError("Choose another."), "Choose another."),
        (MemoryError(), "The machine ran out of memory: choose a smaller pair"),
        (OutOfMemoryError("CUDA out of memory"), "The GPU ran out of memory: choose a smaller pair"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "The machine ran out of memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), "The GPU ran out of memory"),
        (RuntimeError("first line\nsecond"), "failed (RuntimeError: first line). Try again"),
        (AssertionError(), "failed (AssertionError). Try again"),
    ],
)
def test_every_fault_is_reported_in_a_sentence(error, words):
    sentence = sentence_of(error)
    assert words in sentence and "second" not in sentence
    assert is_out_of_memory(error) is ("memory" in words)


def test_news_for_a_reader_that_lags_too_far_behind_give_it_up():
    job = _Job(0, "compare", {}, "run")
    job.inbox.maxsize = 1
    job.post("queued", place=1)
    assert not job.abandoned
    job.post("queued", place=0)
    assert job.abandoned and job.inbox.get() == ("queued", {"place": 1})


def test_a_stop_deep_in_a_job_ends_it_with_what_was_measured_and_not_as_broken(monkeypatch):
    """A chain is recorded deep below the job, for what-if alone; its Cancelled must be the job's."""
    from decoding.comparison import chain
    from tests.toy import ToyPair

    def stopped(*args, **kwargs):
        raise chain.Cancelled

    monkeypatch.setattr("decoding.comparison.chain.record_chain", stopped)
    jobs = Jobs()
    jobs._pair, jobs._key = ToyPair(), ("", "", "", "auto")
    options = {"prompt": "abc", "lanes": ["autoregressive", "static:2"], "max_new_tokens": 5, "repeats": 1}
    kind, data = list(guarded(lambda: jobs.run("compare", options, "run", lambda: False)))[-1]
    assert kind == "finished" and not data["run"]["chains"]


def test_zerogpu_without_its_package_is_a_sentence(monkeypatch):
    monkeypatch.setenv("SPACES_ZERO_GPU", "1")
    monkeypatch.delenv("SPECULOSCOPE_BACKEND", raising=False)
    monkeypatch.setitem(sys.modules, "spaces", None)
    monkeypatch.delitem(sys.modules, "decoding.backends.zerogpu", raising=False)
    with pytest.raises(UserError, match="add it to requirements.txt"):
        choose_backend()


def test_a_recording_that_is_broken_is_a_sentence(tmp_path):
    run = make_run(identifier="first")
    save_run(run, tmp_path / "first.json")
    write_index(tmp_path, [describe_recording(run)])
    (tmp_path / "first.json").write_text("{")
    backend = RecordedBackend(tmp_path)
    events = list(backend.compare(run.settings, threading.Event()))
    sentence = last_sentence(events)
    assert sentence.startswith("The recording first cannot be shown. ") and sentence.endswith(
        "python -m decoding recordings."
    )
    (tmp_path / INDEX).write_text("[1]")
    with pytest.raises(UserError, match="is broken: write it again with python -m decoding recordings"):
        read_index(tmp_path)
    long_job = list(backend.run_job("evaluate", {}, threading.Event()))
    assert "without --recorded" in last_sentence(long_job)


@pytest.mark.parametrize("by_name", [False, True])  # the page asks for the default pair by its name
def test_what_was_loaded_before_anybody_asked_serves_the_first_run(monkeypatch, by_name):
    from tests.toy import ToyPair

    loaded = []
    monkeypatch.setattr("decoding.engines.pair.load_pair", lambda *key, **options: loaded.append(key) or ToyPair())
    jobs = Jobs("cpu")
    jobs.prepare()
    jobs.idle(lambda: False)
    assert jobs._known.find(["small"], 128) is not None
    options = {"prompt": "abc", "lanes": ["autoregressive", "static:2"], "max_new_tokens": 5, "repeats": 1}
    options["pair"] = find_pair().name if by_name else ""
    events = list(jobs.run("compare", options, "run", lambda: False))
    assert events[-1][0] == "finished" and loaded == [("", "", "", "auto")]
    assert [kind for kind, _ in events[:3]] == ["started", "lane_started", "iterations"]


def test_a_run_takes_over_what_is_being_loaded(monkeypatch):
    from tests.toy import ToyPair

    go = threading.Event()
    loaded = []

    def load(*key, **options):
        loaded.append(key)
        go.wait(30)
        return ToyPair()

    monkeypatch.setattr("decoding.engines.pair.load_pair", load)
    jobs = Jobs("cpu")
    jobs.prepare()
    jobs.idle(lambda: True)  # a job arrives immediately
    options = {"prompt": "abc", "lanes": ["static:2"], "max_new_tokens": 5, "repeats": 1}
    events = jobs.run("compare", options, "run", lambda: False)
    assert next(events) == ("progress", {"stage": "loading", "message": "Loading the models", "fraction": None})
    go.set()
    assert list(events)[-1][0] == "finished" and len(loaded) == 1


def test_a_default_pair_that_does_not_load_is_reported_to_whoever_asks(monkeypatch, caplog):
    def load(*key, **options):
        raise UserError("There is no such pair.")

    monkeypatch.setattr("decoding.engines.pair.load_pair", load)
    jobs = Jobs("cpu")
    jobs.prepare()
    jobs.idle(lambda: False)
    assert "There is no such pair." in caplog.text
    events = list(guarded(lambda: jobs.run("compare", {"prompt": "abc"}, "run", lambda: False)))
    assert events[-1] == ("failed", {"message": "There is no such pair."})
