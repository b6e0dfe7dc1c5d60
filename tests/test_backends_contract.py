"""What every backend does with a run, wherever its models are: in a worker process, on a server, in a Space, on a GPU
that is lent.

Ray's, which needs Ray: test_ray.py.
"""

import importlib
import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest

from decoding.backends.base import Backend
from decoding.backends.local import LocalBackend
from decoding.backends.remote import RemoteBackend
from decoding.backends.space import SpaceBackend
from decoding.records.run_file import run_from_dict

from .fakes import ScriptedRunner, begin, check_stream, compare, last_sentence, small_request, stopped
from .page_server import scripted_page
from .serving import served_at
from .test_backends_zerogpu import fake_spaces
from .waiting import wait_until


class Place(NamedTuple):
    backend: Backend
    is_idle: Callable[[], bool]


@pytest.fixture(scope="module")
def worker():
    backend = LocalBackend(ScriptedRunner)
    yield Place(backend, lambda: "nothing is running" in backend.status())
    backend.close()


@pytest.fixture(scope="module")
def server():
    with served_at(LocalBackend(ScriptedRunner), heartbeat_s=0.05) as url:
        backend = RemoteBackend(url)
        yield Place(backend, lambda: "nothing is running" in backend.status())
        backend.close()


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    with scripted_page(tmp_path_factory.mktemp("recordings"), pause_s=0.02) as (behind, url):
        yield Place(SpaceBackend(url), lambda: not behind._waiting)


@pytest.fixture
def lent():
    with fake_spaces() as spaces:
        backend = importlib.import_module("decoding.backends.zerogpu").ZeroGPUBackend(ScriptedRunner())
        yield Place(backend, lambda: not spaces.lent)


@pytest.fixture(params=["worker", "server", "space", "lent"])
def place(request) -> Place:
    return request.getfixturevalue(request.param)


@pytest.fixture
def backend(place) -> Backend:
    return place.backend


def test_a_run_arrives_whole_and_in_order(backend):
    events = list(backend.compare(small_request("def g():"), threading.Event(), "my-own-run"))
    check_stream(events)
    assert [events[0].kind, events[-1].kind] == ["queued", "finished"] and events[0].run == "my-own-run"
    kinds = {event.kind for event in events}
    assert kinds >= {"started", "lane_started", "iterations", "lane_finished"} and "heartbeat" not in kinds
    run = run_from_dict(events[-1].data["run"])
    assert run.id == "my-own-run" and run.settings.prompt == "def g():"
    shown = [event.data for event in events if event.kind == "iterations" and event.data["lane"] == 1]
    starts = [item["start"] for data in shown if data["repeat"] == 0 for item in data["items"]]
    assert starts == [iteration.start for iteration in run.lanes[1].iterations]


def test_cancel_ends_a_run_between_iterations(place):
    events = stopped(place.backend, max_new_tokens=500)
    check_stream(events)
    assert events[-1].kind == "cancelled"
    wait_until(place.is_idle)


def test_a_reader_who_goes_away_ends_the_run(place):
    stream, _ = begin(place.backend, max_new_tokens=500)
    stream.close()
    wait_until(place.is_idle)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": "  "}, "empty"),
        ({"lanes": ["autoregressive", "static:0"]}, "never drafts"),
        ({"lanes": ["autoregressive", "warp:9"]}, "no policy 'warp'"),
    ],
)
def test_what_cannot_run_is_refused_before_it_waits(backend, changes, words):
    events = compare(backend, **changes)
    assert words in last_sentence(events)
    first = {"queued"} if isinstance(backend, SpaceBackend) else set()  # the page elsewhere answers that it was asked
    assert {event.kind for event in events[:-1]} <= first
