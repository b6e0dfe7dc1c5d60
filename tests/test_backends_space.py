"""A page elsewhere as the backend, through gradio_client; the tests serve that page."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest

from decoding.backends import choose_backend
from decoding.backends.space import SpaceBackend, carried
from decoding.errors import UserError
from decoding.records.request import CompareRequest
from decoding.records.run_file import run_from_json

from .fakes import check_stream, small_request
from .page_server import scripted_page
from .waiting import wait_until


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with scripted_page(tmp_path_factory.mktemp("recordings"), pause_s=0.005) as (behind, url):
        yield behind, SpaceBackend(url)


@pytest.fixture(scope="module")
def space(served):
    return served[1]


def test_a_run_arrives_whole_as_from_any_backend(space):
    events = list(space.compare(small_request("def g():"), threading.Event(), "my-own-run"))
    check_stream(events)
    assert {event.run for event in events} == {"my-own-run"} and events[-1].kind == "finished"
    run = run_from_json(json.dumps(events[-1].data["run"]))
    assert run.id == "my-own-run" and run.settings.prompt == "def g():"
    lanes = [event.data for event in events if event.kind == "iterations" and event.data["lane"] == 1]
    items = [item for data in lanes for item in data["items"]]
    assert [item["start"] for item in items] == [iteration.start for iteration in run.lanes[1].iterations]


def test_stopping_here_ends_the_run_there(served):
    behind, space = served
    cancel = threading.Event()
    stream = space.compare(small_request(max_new_tokens=2000), cancel)
    while next(stream).kind != "iterations":
        pass
    cancel.set()
    assert list(stream)[-1].kind == "cancelled"
    wait_until(lambda: not behind._waiting)


def test_a_refusal_there_is_its_own_sentence(space):
    events = list(space.compare(small_request(lanes=["static:0"]), threading.Event()))
    assert events[-1].kind == "failed" and "never drafts" in events[-1].data["message"]


@pytest.mark.parametrize(
    "setting", [{"top_k": 5}, {"stop": ["x"]}, {"ignore_eos": True}, {"target": "x", "draft": "y"}]
)
def test_a_setting_that_the_endpoint_does_not_take_is_refused_here(space, setting):
    events = list(space.compare(small_request(**setting), threading.Event()))
    assert len(events) == 1 and f"no setting {next(iter(setting)).replace('_', ' ')}" in events[0].data["message"]


def test_all_other_settings_are_carried():
    request = CompareRequest("x", max_new_tokens=7, rule="coupling", temperature=0.5, seed=3, repeats=2, chat=True)
    arguments = carried(request)
    assert arguments["chat"] == "ask" and arguments["seed"] == 3 and arguments["rule"] == "coupling"


def test_nothing_there_is_a_sentence():
    events = list(SpaceBackend("http://127.0.0.1:9").compare(small_request(), threading.Event()))
    check_stream(events)
    assert "does not answer" in events[-1].data["message"]


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
    events = list(backend.compare(small_request(), threading.Event()))
    check_stream(events)
    assert words in events[-1].data["message"] and "owner/name" in events[-1].data["message"]


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
    events = list(backend.compare(small_request(), threading.Event()))
    check_stream(events)
    assert "is it the right Space" in events[-1].data["message"]


def test_it_is_chosen_by_its_name():
    assert choose_backend(url="space:owner/name").name == "space"
    for place in ("owner", "../x", "a/b/c", ""):
        with pytest.raises(UserError, match="is not a Space"):
            choose_backend(url=f"space:{place}")
