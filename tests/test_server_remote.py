"""A served backend and the client that follows it, over real sockets on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace

import httpx
import pytest

from decoding.backends.local import LocalBackend
from decoding.backends.remote import RemoteBackend
from decoding.backends.server import Limits
from decoding.backends.soak import SoakOptions, SoakResult, _Lifetimes, compare_throughput, served, soak
from decoding.errors import UserError
from decoding.records.events import event_to_json
from decoding.records.request import Grant
from tests import web
from tests.fakes import (
    FakeBackend,
    ScriptedRunner,
    check_stream,
    compare,
    last_sentence,
    small_request,
    until,
)
from tests.waiting import wait_until

BODY = {"kind": "compare", "options": {"prompt": "x", "lanes": ["autoregressive"], "max_new_tokens": 8}}


@pytest.fixture(scope="module")
def port():
    with served(LocalBackend(ScriptedRunner), Limits(heartbeat_s=0.05)) as port:
        yield port


@pytest.fixture
def remote(port):
    backend = RemoteBackend(f"http://127.0.0.1:{port}")
    yield backend
    backend.close()


def idle(port):
    return "nothing is running" in web.get(f"http://127.0.0.1:{port}/health").json()["backend"]


def test_a_run_over_the_wire_is_whole(remote):
    events = compare(remote)
    check_stream(events)
    assert [events[0].kind, events[-1].kind] == ["queued", "finished"]
    assert "heartbeat" not in {event.kind for event in events}


def test_cancel_reaches_the_other_machine(remote, port):
    cancel, events = threading.Event(), []
    for event in remote.compare(small_request("#slow", max_new_tokens=2000), cancel):
        events.append(event)
        if event.kind == "iterations":
            cancel.set()
    check_stream(events)
    assert events[-1].kind == "cancelled"
    wait_until(lambda: idle(port))


def test_a_reader_that_goes_away_ends_its_run(remote, port):
    stream = remote.compare(small_request("#slow", max_new_tokens=2000), threading.Event())
    until(stream)
    stream.close()
    wait_until(lambda: idle(port))


@pytest.mark.parametrize("cut", [False, True], ids=["never read", "cut in the midst"])
def test_a_run_that_nobody_reads_ends_after_the_time_of_grace(cut):
    body = {"kind": "compare", "options": {"prompt": "#slow", "max_new_tokens": 2000, "lanes": ["autoregressive"]}}
    grace_s = 2.0 if cut else 0.3  # a reader who is to be cut must come in time, also on a busy machine
    with served(LocalBackend(ScriptedRunner), Limits(grace_s=grace_s)) as port:
        url = f"http://127.0.0.1:{port}/runs/unread-one"
        assert web.put(url, json=body).status_code == 201
        if cut:
            with web.stream("GET", f"{url}/events") as response:
                next(line for line in response.iter_lines() if json.loads(line)["kind"] == "iterations")
        wait_until(lambda: idle(port))
        assert web.get(f"{url}/events").status_code == 404


def test_a_broken_connection_within_grace_resumes_where_it_broke(port):
    url = f"http://127.0.0.1:{port}/runs/resumed-run"
    web.put(url, json=BODY)
    seen = []
    with web.stream("GET", f"{url}/events") as response:
        for line in response.iter_lines():
            seen.append(json.loads(line))
            if seen[-1]["seq"] == 3:
                break
    rest = web.get(f"{url}/events", params={"from": 4}).text.splitlines()
    numbers = [e["seq"] for e in [*seen, *map(json.loads, rest)] if e["kind"] != "heartbeat"]
    assert numbers == list(range(len(numbers))) and len(numbers) > 6
    assert json.loads(rest[-1])["kind"] == "finished"


@pytest.mark.parametrize(
    "body, status, part",
    [
        (b"not json", 400, "must be JSON"),
        (b"[]", 400, "must be JSON"),
        (b'{"kind": "compare"}', 400, "must be JSON"),
        (b'{"kind": "shell", "options": {}}', 400, "kind must be"),
        (b'{"kind": "compare", "options": {"prompt": ""}}', 400, "empty"),
        (b'{"kind": "compare", "options": {"prompt": "x", "nonsense": 1}}', 400, "nonsense"),
        (b'{"kind": "compare", "options": {"prompt": "x", "target": "a/b", "draft": "c/d"}}', 400, "lists"),
        (b'{"kind": "compare", "options": {"prompt": "x", "max_new_tokens": true}}', 400, "not True"),
        (b"[" * 100_000, 400, "must be JSON"),
        (b" " * (2 * 2**20 + 1), 413, "larger than"),
    ],
)
def test_bad_bodies_are_answered_with_a_sentence(port, body, status, part):
    response = web.put(f"http://127.0.0.1:{port}/runs/bad-body", content=body)
    assert response.status_code == status and part in response.json()["message"]


def test_no_pages_but_the_documented_ones(port):
    for path in ("/docs", "/openapi.json", "/redoc"):
        assert web.get(f"http://127.0.0.1:{port}{path}").status_code == 404


def test_limits_of_the_server_are_sentences():
    with served(FakeBackend(), Limits(grant=Grant(20, 10, 30, long_jobs=False))) as port:
        remote = RemoteBackend(f"http://127.0.0.1:{port}")
        assert "here at most 10." in last_sentence(compare(remote))
        assert "here at most 20 are read" in last_sentence(compare(remote, "x" * 21, max_new_tokens=4))
        assert "would decode 32 tokens" in last_sentence(compare(remote, max_new_tokens=8, repeats=2))
        assert compare(remote, max_new_tokens=7)[-1].kind == "finished"
        refused = list(remote.run_job("evaluate", {}, threading.Event()))
        assert "machine is shared" in last_sentence(refused)


def test_a_full_server_refuses_with_a_sentence():
    with served(LocalBackend(ScriptedRunner), Limits(max_runs=1)) as port:
        remote = RemoteBackend(f"http://127.0.0.1:{port}")
        stream = remote.compare(small_request("#slow"), threading.Event())
        next(stream)
        assert "the maximum" in last_sentence(compare(remote))
        stream.close()


def test_the_token_is_asked_for():
    with served(FakeBackend(), Limits(), token="s3cret") as port:
        url = f"http://127.0.0.1:{port}"
        for token in ("", "s3cret!"):
            refused = last_sentence(compare(RemoteBackend(url, token=token)))
            assert "with SPECULOSCOPE_TOKEN set to the server's" in refused
        response = web.delete(f"{url}/runs/any-run-at-all")
        assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"
        assert compare(RemoteBackend(url, token="s3cret"))[-1].kind == "finished"
        assert RemoteBackend(url).pairs() == []
        assert [pair.name for pair in RemoteBackend(url, token="s3cret").pairs()] == ["toy"]
        assert web.get(f"{url}/health").json()["status"] == "ok"


def test_nobody_there_is_a_sentence():
    nowhere = RemoteBackend("http://127.0.0.1:9", patience_s=0.1)
    assert "Nothing answers at 127.0.0.1:9" in last_sentence(compare(nowhere))
    assert "Nothing answers" in nowhere.status()
    assert nowhere.pairs() == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gpu:8700",
        "ftp://x",
        "http://",
        "javascript:1",
        "http://gpu:port",
        "http://gpu:99999",
        "http://[::1",
        "http://gpu:1\n",
        f"http://{'a' * 80}:1",
    ],
)
def test_bad_addresses_are_refused(url):
    with pytest.raises(UserError, match="not the address"):
        RemoteBackend(url)


def test_events_of_another_run_are_never_shown():
    alien = '{"run":"another-run","seq":0,"kind":"queued","data":{}}\n'
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=alien))
    events = compare(RemoteBackend("http://x", transport=transport))
    assert [event.kind for event in events] == ["failed"] and "out of order" in events[0].data["message"]


def test_a_killed_server_is_a_sentence_and_what_had_arrived_stays():
    script = textwrap.dedent("""
        import threading
        from decoding.backends.server import Limits
        from decoding.backends.soak import served
        from tests.fakes import FakeBackend
        with served(FakeBackend(), Limits()) as port:
            print(port, flush=True)
            threading.Event().wait()
    """)
    server = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    port = int(server.stdout.readline())
    events = []
    remote = RemoteBackend(f"http://127.0.0.1:{port}", patience_s=1.0)
    for event in remote.compare(small_request("#slow", max_new_tokens=4000), threading.Event()):
        events.append(event)
        if event.kind == "iterations":
            server.kill()
    server.wait()
    assert "was lost" in last_sentence(events)
    assert "iterations" in {event.kind for event in events}


def test_a_slow_reader_holds_the_run_back_and_loses_nothing():
    with served(FakeBackend(), Limits(window=8, heartbeat_s=0.05)) as port:
        events = []
        for event in RemoteBackend(f"http://127.0.0.1:{port}").compare(small_request(), threading.Event()):
            events.append(event)
            time.sleep(0.002)
    check_stream(events)
    assert len(events) > 5 * 8 and events[-1].kind == "finished"


def test_nothing_is_lost_or_mixed_when_connections_are_cut():
    requests = [small_request(f"run {i} #slow", seed=i, max_new_tokens=12, repeats=1) for i in range(10)]
    result = soak(LocalBackend(ScriptedRunner), requests, SoakOptions(clients=4, cut_after_s=(0.005, 0.15)))
    assert result.is_clean, result
    assert result.cuts >= 10


def test_on_a_busy_machine_the_cuts_let_something_through():
    """No lifetime in the range is long enough for an answer, and still all runs end."""
    requests = [small_request(f"run {i}", max_new_tokens=4, repeats=1) for i in range(2)]
    result = soak(FakeBackend(), requests, SoakOptions(clients=2, cut_after_s=(0.001, 0.002)))
    assert result.is_clean and result.cuts > 2, result
    lives = _Lifetimes(1.0, 1.0, seed=0)
    for answered, life in ((False, 2.0), (False, 4.0), (True, 2.0), (True, 1.0), (True, 1.0)):
        lives.observe(answered)
        assert lives.draw() == life


def test_the_soak_notices_what_goes_wrong():
    request = small_request()
    events = compare(FakeBackend())

    def judged(events, sent=None):
        result = SoakResult()
        result.judge(events, [event_to_json(event) for event in sent or events], request)
        return result

    assert judged(events).is_clean
    assert judged(events[:5] + events[6:], events).lost == 1
    assert judged(events[:5] + events[4:], events).mixed == 1  # one arrived twice
    assert judged([*events[:5], replace(events[5], data={}), *events[6:]], events).mixed == 1
    assert judged(compare(FakeBackend(), "another prompt")).mixed == 1
    swapped = compare(FakeBackend(), seed=3)
    assert judged(events[:-1] + swapped[-1:]).mixed == 1


@pytest.mark.parametrize("ending", ["", "Internal Server Error"])
def test_an_answer_that_ends_within_a_line_is_a_broken_connection(ending):
    """A proxy in between may end an answer properly although what it passes on broke off."""
    sent = compare(FakeBackend())
    lines = [event_to_json(event) + "\n" for event in sent]
    answers = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method != "GET":
            return httpx.Response(204)
        answers.append("".join(lines[int(request.url.params["from"]) :]))
        return httpx.Response(200, text=answers[0][:700] + ending if len(answers) == 1 else answers[-1])

    remote = RemoteBackend("http://elsewhere:1", transport=httpx.MockTransport(answer))
    events = list(remote.compare(small_request(), threading.Event(), sent[0].run))
    assert [event_to_json(event) + "\n" for event in events] == lines and len(answers) == 2


def test_a_crowd_of_visitors_is_timed_at_both_addresses_in_turn():
    requests = [small_request(f"visitor {i}", max_new_tokens=8, repeats=1) for i in range(4)]
    order = []
    with served(FakeBackend(), Limits()) as one, served(FakeBackend(), Limits()) as many:
        urls = [f"http://127.0.0.1:{port}" for port in (one, many)]
        result = compare_throughput(*urls, requests, rounds=2, on_crowd=order.append)
    assert result.is_clean and len(result.ratios) == 2 and result.ends["finished"] == 4 * 6, result
    assert order == [1, 2, 3, 4, 5, 6] and all(ratio > 0 for ratio in result.ratios)


def test_the_front_end_needs_no_torch_with_a_worker_nor_with_a_server(port):
    """The models are in the worker or on the server. The page itself: tests/test_page_app.py."""
    script = textwrap.dedent(f"""
        import sys, threading
        for name in ("torch", "transformers"):
            sys.modules[name] = None
        from decoding.backends import choose_backend
        from decoding.backends.local import LocalBackend
        from tests.fakes import ScriptedRunner, small_request
        worker = LocalBackend(ScriptedRunner)
        events = list(worker.compare(small_request(), threading.Event()))
        assert events[-1].kind == "finished", events[-1]
        worker.close()
        backend = choose_backend(url="http://127.0.0.1:{port}")
        events = list(backend.compare(small_request(), threading.Event()))
        assert events[-1].kind == "finished", events[-1]
    """)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=170)
