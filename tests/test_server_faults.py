"""Failures between a front end and a served backend, over real sockets: each ends with a clear sentence."""

from __future__ import annotations

import json
import logging
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest

from decoding.backends import choose_backend
from decoding.backends.base import CLOSED
from decoding.backends.local import LocalBackend
from decoding.backends.remote import RemoteBackend
from decoding.backends.server import Limits, create_app
from decoding.backends.soak import served
from decoding.backends.stream import EventStream
from decoding.cli.serve import free_port
from decoding.errors import UserError
from decoding.records.events import Numbering
from tests import web
from tests.commands import command
from tests.fakes import FakeBackend, ScriptedRunner, compare, last_sentence, small_request, until
from tests.test_server_remote import BODY
from tests.waiting import in_own_loop, wait_until

LONG = {"kind": "compare", "options": {"prompt": "#slow", "max_new_tokens": 2000, "lanes": ["autoregressive"]}}
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@contextmanager
def program(answer):
    """A program on a loopback port: ``answer(connection, received)``. Yields a RemoteBackend for it."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked: list[bytes] = []

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=reply, args=(connection,), daemon=True).start()

    def reply(connection):
        with connection:
            asked.append(connection.recv(65536))
            answer(connection, asked[-1])
            with suppress(OSError):  # a close before all was read would reset the connection, and the answer with it
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

    threading.Thread(target=serve, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    remote = RemoteBackend(url, patience_s=1.0, silence_s=0.3)
    remote.asked = asked
    try:
        yield remote
    finally:
        remote.close()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.mark.parametrize(
    "answer",
    [
        lambda connection, asked: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"),
        lambda connection, asked: connection.sendall(EMPTY),
        lambda connection, asked: connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnope"
        ),
    ],
    ids=["not HTTP", "empty answers", "broken encoding"],
)
def test_another_program_on_that_port_is_named_so(answer):
    with program(answer) as remote:
        assert "it is not a Speculoscope backend" in last_sentence(compare(remote))
        assert "it is not a Speculoscope backend" in remote.status()
        assert remote.pairs() == []
        assert len(remote.asked) < 40  # and it is not overloaded with requests


def test_a_server_whose_heartbeat_stops_is_given_up():
    silent = threading.Event()

    def answer(connection, asked):
        method, path = asked.decode().split()[:2]
        if method == "GET":
            connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
            if path.endswith("from=0"):
                event = {"run": path.split("/")[2], "seq": 0, "kind": "queued", "data": {"place": 0}}
                connection.sendall(json.dumps(event).encode() + b"\n")
            silent.wait(20)
        else:
            connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    with program(answer) as remote:
        events = compare(remote)
        silent.set()
    assert "was lost and did not come back" in last_sentence(events)
    assert [event.kind for event in events] == ["queued", "failed"]  # the part that had arrived stays


def test_after_a_restart_the_server_says_that_it_does_not_know_the_run_and_serves_the_next_one():
    with ExitStack() as first_life:
        port = first_life.enter_context(served(LocalBackend(ScriptedRunner), Limits()))
        remote = RemoteBackend(f"http://127.0.0.1:{port}", patience_s=1.0)
        stream = remote.compare(small_request("#slow", max_new_tokens=4000), threading.Event())
        events = until(stream)
        first_life.close()
        assert "Nothing answers" in last_sentence(compare(remote))
        with served(FakeBackend(), Limits(), port=port):
            events += stream
            assert compare(remote)[-1].kind == "finished"
    assert "does not know this run" in last_sentence(events) and "Start it again" in events[-1].data["message"]


def test_runs_and_events_that_there_are_not_are_sentences():
    with served(FakeBackend(), Limits()) as port:
        for method, path in (("GET", "/events"), ("DELETE", "")):
            response = web.request(method, f"http://127.0.0.1:{port}/runs/unknown-run{path}")
            assert response.status_code == 404 and "does not know this run" in response.json()["message"]
        url = f"http://127.0.0.1:{port}/runs/known-one"
        assert [web.put(url, json=BODY).status_code for _ in range(2)] == [201, 201]  # the second one starts nothing
        list(web.get(f"{url}/events").iter_lines())
        assert web.get(f"{url}/events", params={"from": 2}).status_code == 200
        for start, status, words in (
            (0, 410, "no longer kept"),
            (999, 400, "does not exist yet: request"),
            (-1, 400, "number of an event"),
            ("x", 400, "number of an event"),
        ):
            response = web.get(f"{url}/events", params={"from": start})
            assert response.status_code == status and words in response.json()["message"]
        other = web.put(url, json={**BODY, "kind": "evaluate"})
        assert other.status_code == 409 and "and other settings" in other.json()["message"]
        misnamed = web.put(f"http://127.0.0.1:{port}/runs/a%20b", json=BODY)
        assert misnamed.status_code == 400 and "letters" in misnamed.json()["message"]


def test_a_request_that_breaks_off_starts_nothing_and_is_no_fault_of_the_server():
    faults: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: faults.append(record.getMessage())
    with served(FakeBackend(), Limits()) as port:
        logging.getLogger("uvicorn.error").addHandler(handler)
        try:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"PUT /runs/half-a-body HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{")
            for _ in range(3):
                assert web.get(f"http://127.0.0.1:{port}/runs/half-a-body/events").status_code == 404
        finally:
            logging.getLogger("uvicorn.error").removeHandler(handler)
    assert faults == []


@pytest.mark.parametrize("token", ["ü", "a b", "a\n", "a\r\nX: y"])
def test_a_token_that_no_header_can_carry_is_refused_on_both_sides(token, monkeypatch):
    monkeypatch.setenv("SPECULOSCOPE_TOKEN", token)
    with pytest.raises(UserError, match="only ASCII letters"):
        choose_backend(url="http://gpu:8700")
    with pytest.raises(UserError, match="only ASCII letters"):
        create_app(FakeBackend(), token)
    status, _, err = command("serve", "--port", str(free_port()))
    assert status == 2 and "only ASCII letters" in err


def test_the_address_that_serve_prints_is_one_that_a_front_end_takes(monkeypatch):
    monkeypatch.setattr("uvicorn.Server.run", lambda server: None)
    monkeypatch.setattr(LocalBackend, "prepare", lambda backend: None)
    monkeypatch.setattr("decoding.cli.serve.check_address", lambda host, port: None)
    for host in ("127.0.0.1", "::1", "::"):
        status, _, err = command("serve", "--host", host, "--insecure")
        assert status == 0
        RemoteBackend(err.split("--backend ")[1].split()[0]).close()


def test_a_front_end_of_another_version_gets_that_sentence():
    with served(FakeBackend(), Limits()) as port:
        newer = {"kind": "compare", "options": {"prompt": "x", "fancy": 1}}
        response = web.put(f"http://127.0.0.1:{port}/runs/newer-client", json=newer)
    assert response.status_code == 400
    assert response.json()["message"] == (
        "This server does not know the setting fancy: is the front end of the same version?"
    )


def test_a_server_of_another_version_gets_that_sentence(caplog):
    later = '{"run":"%s","seq":0,"kind":"hologram","data":{}}\n'
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=later % request.url.path.split("/")[2]))
    assert "of the same version?" in last_sentence(compare(RemoteBackend("http://x", transport=transport)))
    broken = '{{"run": "{run}", "seq": 0, "kind": "finished", "data": {{"run": {{"lanes": 3}}}}}}\n'
    sent = httpx.MockTransport(
        lambda request: httpx.Response(200, text=broken.format(run=request.url.path.split("/")[2]))
    )
    assert "not an event of a comparison" in last_sentence(compare(RemoteBackend("http://x", transport=sent)))
    page = httpx.MockTransport(lambda request: httpx.Response(404, text="<html>"))
    assert "HTTP status 404" in last_sentence(compare(RemoteBackend("http://x", transport=page)))
    pairs = httpx.MockTransport(lambda request: httpx.Response(200, json=[{"label": "a pair"}]))
    assert RemoteBackend("http://x", transport=pairs).pairs() == [] and "same version" in caplog.text


def test_pairs_that_the_server_cannot_list_are_a_sentence_in_the_log(caplog):
    class Broken(FakeBackend):
        def pairs(self):
            raise UserError("x/pair.json does not contain a JSON object.")

    with served(Broken(), Limits()) as port:
        assert RemoteBackend(f"http://127.0.0.1:{port}").pairs() == []
    assert "does not contain a JSON object" in caplog.text


def raises_at_once(event):
    raise OSError("disk on fire")
    yield


def falls_silent(event):
    yield event("queued", place=0)


@pytest.mark.parametrize("events, words", [(raises_at_once, "disk on fire"), (falls_silent, "ended without a result")])
def test_a_backend_that_breaks_its_promise_still_ends_the_run(events, words):
    class Broken(FakeBackend):
        def run_job(self, kind, options, cancel, run_id=None):
            return events(Numbering(run_id))

    with served(Broken(), Limits(max_runs=1)) as port:
        for _ in range(2):  # and its place is free again
            assert words in last_sentence(compare(RemoteBackend(f"http://127.0.0.1:{port}")))


def test_stop_does_not_wait_for_a_server_that_does_not_answer():
    cancel = threading.Event()
    cancel.set()
    assert "empty" in last_sentence(compare(RemoteBackend("http://127.0.0.1:9"), " "))  # refused before it travels
    events = list(RemoteBackend("http://127.0.0.1:9", patience_s=600).compare(small_request(), cancel))
    assert [event.kind for event in events] == ["cancelled"]


def test_closing_the_front_end_in_the_midst_is_a_sentence():
    with served(LocalBackend(ScriptedRunner), Limits()) as port:
        remote = RemoteBackend(f"http://127.0.0.1:{port}")
        stream = remote.compare(small_request("#slow", max_new_tokens=2000), threading.Event())
        events = until(stream)
        remote.close()
        assert last_sentence(events + list(stream)) == CLOSED


@pytest.mark.parametrize(
    "words",
    [
        ["soak", "--runs", "0"],
        ["soak", "--clients", "0"],
        ["soak", "--cut-after", "0"],
        ["soak", "--cut-after", "nan"],
        ["serve", "--port", "18700", "--max-waiting", "-1"],
        ["serve", "--port", "18700", "--max-new-tokens", "0"],
    ],
)
def test_limits_under_which_nothing_runs_are_refused(words):
    status, _, err = command(*words)
    assert status == 2 and (" or more" in err or "at least one run" in err)


def test_lack_of_memory_in_a_command_is_a_sentence(monkeypatch):
    def pairs() -> None:
        raise MemoryError

    monkeypatch.setattr("decoding.cli.lists.pairs", pairs)
    status, _, err = command("pairs")
    assert status == 1 and "The machine ran out of memory: choose" in err


def test_the_last_event_is_read_also_if_it_comes_while_a_reader_looks(monkeypatch):
    """It is made in another thread: between a look at what has come and the question whether that is all."""
    go = threading.Event()

    def events(cancel):
        go.wait(30)
        yield Numbering("run-1")("finished")

    async def read():
        stream = EventStream("run-1", events, lambda event: event.kind)
        look = stream.kept

        def slow_look(start, end=None):
            found = look(start, end)
            go.set()
            wait_until(lambda: stream.ended)
            return found

        monkeypatch.setattr(stream, "kept", slow_look)
        return await stream.read(0)

    assert in_own_loop(read()) == ["finished"]
