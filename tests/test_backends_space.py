"""A page elsewhere as the backend: what it cannot do and what can fail. Its runs: test_backends_contract.py."""

from types import SimpleNamespace

import pytest

from decoding.backends import choose_backend
from decoding.backends.space import SpaceBackend, carried
from decoding.errors import UserError
from decoding.records.request import CompareRequest

from .fakes import compare, last_sentence


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


def test_it_is_chosen_by_its_name():
    assert choose_backend(url="space:owner/name").name == "space"
    for place in ("owner", "../x", "a/b/c", ""):
        with pytest.raises(UserError, match="is not a Space"):
            choose_backend(url=f"space:{place}")
