"""Jobs, a page elsewhere as the backend, and what can fail in them: each fault ends with a clear sentence."""

import sys
import threading
from types import SimpleNamespace

import pytest

from decoding.backends import choose_backend
from decoding.backends.jobs import Jobs
from decoding.backends.space import SpaceBackend, carried
from decoding.errors import UserError, is_out_of_memory, sentence_of
from decoding.records.events import guarded
from decoding.records.pairs import find_pair
from decoding.records.request import CompareRequest
from tests.toy import ToyPair

from .fakes import compare, last_sentence


class OutOfMemoryError(RuntimeError):
    """Named like torch's exception, which is recognised by its name."""


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


def test_zerogpu_without_its_package_is_a_sentence(monkeypatch):
    monkeypatch.setenv("SPACES_ZERO_GPU", "1")
    monkeypatch.delenv("SPECULOSCOPE_BACKEND", raising=False)
    monkeypatch.setitem(sys.modules, "spaces", None)
    monkeypatch.delitem(sys.modules, "decoding.backends.zerogpu", raising=False)
    with pytest.raises(UserError, match="add it to requirements.txt"):
        choose_backend()


OPTIONS = {"prompt": "abc", "lanes": ["autoregressive", "static:2"], "max_new_tokens": 5, "repeats": 1}


@pytest.fixture
def prepared(monkeypatch):
    """prepared(load, busy=False): jobs with ``load`` for load_pair that have made use of the time before the first."""

    def prepare(load, busy: bool = False) -> Jobs:
        monkeypatch.setattr("decoding.engines.pair.load_pair", lambda *key, **options: load(*key))
        jobs = Jobs("cpu")
        jobs.prepare()
        jobs.idle(lambda: busy)
        return jobs

    return prepare


@pytest.mark.parametrize("by_name", [False, True])  # the page asks for the default pair by its name
def test_what_was_loaded_before_anybody_asked_serves_the_first_run(prepared, by_name):
    loaded = []
    jobs = prepared(lambda *key: loaded.append(key) or ToyPair())
    assert jobs._known.find(["small"], 128) is not None
    asked = OPTIONS | {"pair": find_pair().name if by_name else ""}
    events = list(jobs.run("compare", asked, "run", lambda: False))
    assert events[-1][0] == "finished" and loaded == [("", "", "", "auto", "auto")]
    assert [kind for kind, _ in events[:3]] == ["started", "lane_started", "iterations"]


def test_a_run_takes_over_what_is_being_loaded(prepared):
    go, loaded = threading.Event(), []

    def load(*key):
        loaded.append(key)
        go.wait(30)
        return ToyPair()

    events = prepared(load, busy=True).run("compare", OPTIONS, "run", lambda: False)  # a job arrives immediately
    assert next(events) == ("progress", {"stage": "loading", "message": "Loading the models", "fraction": None})
    go.set()
    assert list(events)[-1][0] == "finished" and len(loaded) == 1


def test_a_default_pair_that_does_not_load_is_reported_to_whoever_asks(prepared, caplog):
    def load(*key):
        raise UserError("There is no such pair.")

    jobs = prepared(load)
    assert "There is no such pair." in caplog.text
    events = list(guarded(jobs.run("compare", OPTIONS, "run", lambda: False)))
    assert events[-1] == ("failed", {"message": "There is no such pair."})


# -- a page elsewhere as the backend; its runs: test_backends_contract.py


@pytest.fixture
def space():
    """A Space at which nothing answers."""
    return SpaceBackend("http://127.0.0.1:9")


@pytest.mark.parametrize(
    "setting", [{"top_k": 5}, {"stop": ["x"]}, {"ignore_eos": True}, {"target": "x", "draft": "y"}]
)
def test_a_setting_that_the_endpoint_does_not_take_is_refused_here(space, setting):
    events = compare(space, **setting)
    assert len(events) == 1 and f"no setting {next(iter(setting)).replace('_', ' ')}" in events[0].data["message"]


def test_all_other_settings_are_carried():
    request = CompareRequest("x", max_new_tokens=7, rule="coupling", temperature=0.5, seed=3, repeats=2, chat=True)
    arguments = carried(request)
    assert arguments["chat"] == "ask" and arguments["seed"] == 3 and arguments["rule"] == "coupling"


def test_nothing_there_is_a_sentence(space):
    assert "does not answer" in last_sentence(compare(space))


class TooManyRequestsError(Exception): ...


class AppError(ValueError): ...


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AppError("You have exceeded your <b>GPU quota</b> (60s requested)"), "no GPU for this run: You have exceeded"),
        (TooManyRequestsError("slow down"), "too many visitors"),
        (ValueError("The current space is in the invalid state: PAUSED."), "is asleep or has stopped"),
        (AppError("something"), "is it the right Space"),
        (OSError("no route"), "does not answer"),
    ],
)
def test_faults_of_a_space_are_sentences(monkeypatch, error, words):
    backend = SpaceBackend("owner/name")

    def fail():
        raise error

    monkeypatch.setattr(backend, "_connect", fail)
    sentence = last_sentence(compare(backend))
    assert words in sentence and "owner/name" in sentence


@pytest.mark.parametrize(
    "event",
    [
        "a text",
        None,
        {"kind": "iterations"},
        {"kind": "iterations", "data": "a text"},
        {"kind": "iterations", "data": {"lane": 0, "repeat": 0, "items": {"first": {}}}},
        {"kind": "finished", "data": {"run": {"id": "x"}}},
    ],
)
def test_a_page_that_answers_with_something_else_is_no_space(monkeypatch, event):
    class Answer(list):
        def done(self):
            return True

    backend = SpaceBackend("owner/name")
    client = SimpleNamespace(submit=lambda **arguments: Answer([event]))
    monkeypatch.setattr(backend, "_connect", lambda: client)
    assert "is it the right Space" in last_sentence(compare(backend))
