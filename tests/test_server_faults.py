"""Failures between a front end and a served backend, over real sockets: each ends with a clear sentence."""

import json
import logging
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import httpx
import pytest

from decoding.backends import choose_backend
from decoding.backends.base import CLOSED
from decoding.backends.remote import RemoteBackend
from decoding.backends.server import create_app
from decoding.errors import UserError
from tests import web
from tests.commands import command
from tests.fakes import FakeBackend, begin, compare, last_sentence, small_request
from tests.serving import BODY, answered, free_port, served_at

EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
BROKEN = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnope"


@contextmanager
def program(answer):
    """A program on a loopback port: ``answer(connection, received)``. Yields a RemoteBackend for it."""
    asked: list[bytes] = []

    class Reply(socketserver.BaseRequestHandler):
        def handle(self):
            asked.append(self.request.recv(65536))
            answer(self.request, asked[-1])
            with suppress(OSError):  # a close before all was read would reset the connection, and the answer with it
                self.request.shutdown(socket.SHUT_WR)
                while self.request.recv(65536):
                    pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Reply) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        remote = RemoteBackend(f"http://127.0.0.1:{server.server_address[1]}", patience_s=0.4, silence_s=0.3)
        remote.asked = asked
        yield remote
        remote.close()
        server.shutdown()


@pytest.mark.parametrize(
    "sent", [b"SSH-2.0-OpenSSH_9.2\r\n", EMPTY, BROKEN], ids=["not HTTP", "empty answers", "broken encoding"]
)
def test_another_program_on_that_port_is_named_so(sent):
    with program(lambda connection, asked: connection.sendall(sent)) as remote:
        assert "it is not a Speculoscope backend" in last_sentence(compare(remote))
        assert "it is not a Speculoscope backend" in remote.status()
        assert remote.pairs() == []
        assert len(remote.asked) < 20  # and it is not overloaded with requests


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


def test_what_becomes_of_a_run_whose_server_is_gone_and_then_back():
    """Without a server the connection is lost for the impatient; the next server says that it does not know the run."""
    with ExitStack() as first_life:
        url = first_life.enter_context(served_at())
        remotes = [RemoteBackend(url, patience_s=patience_s) for patience_s in (0.1, 60.0)]
        (lost, lost_events), (kept, kept_events) = (begin(remote) for remote in remotes)
        first_life.close()
        lost_events += lost
        assert "was lost and did not come back" in last_sentence(lost_events)
        assert "iterations" in {event.kind for event in lost_events}  # what had arrived stays
        assert "Nothing answers" in last_sentence(compare(remotes[0]))
        with served_at(port=urlsplit(url).port):
            kept_events += kept
            assert compare(remotes[1])[-1].kind == "finished"
    sentence = last_sentence(kept_events)
    assert "does not know this run" in sentence and "Start it again" in sentence


def test_runs_and_events_that_there_are_not_are_sentences():
    with served_at() as url:
        known = f"{url}/runs/known-one"
        assert [web.put(known, json=BODY).status_code for _ in range(2)] == [201, 201]  # the second one starts nothing
        web.get(f"{known}/events")  # to the run's end
        events, later = (web.get(f"{known}/events", params={"from": start}).text for start in (0, 2))
        assert later == "".join(events.splitlines(keepends=True)[2:]) and '"kind":"finished"' in later
        for method, path, body, status, words in (
            ("GET", "unknown-run/events", None, 404, "does not know this run"),
            ("DELETE", "unknown-run", None, 404, "does not know this run"),
            ("GET", "known-one/events?from=999", None, 400, "does not exist yet: request"),
            ("GET", "known-one/events?from=-1", None, 400, "number of an event"),
            ("GET", "known-one/events?from=x", None, 400, "number of an event"),
            ("PUT", "known-one", {**BODY, "kind": "evaluate"}, 409, "and other settings"),
            ("PUT", "long-enough%20b", BODY, 400, "letters"),
        ):
            response = web.request(method, f"{url}/runs/{path}", json=body)
            assert response.status_code == status and words in response.json()["message"], path


def test_a_request_that_breaks_off_starts_nothing_and_is_no_fault_of_the_server(caplog, monkeypatch):
    with served_at() as url:
        monkeypatch.setattr(logging.getLogger("uvicorn.error"), "handlers", [caplog.handler])  # the server had its own
        with socket.create_connection(("127.0.0.1", urlsplit(url).port)) as connection:
            connection.sendall(b"PUT /runs/half-a-body HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{")
        for _ in range(3):
            assert web.get(f"{url}/runs/half-a-body/events").status_code == 404
    assert [record for record in caplog.records if record.name == "uvicorn.error"] == []


@pytest.mark.parametrize("token", ["ü", "a b", "a\n", "a\r\nX: y"])
def test_a_token_that_no_header_can_carry_is_refused_on_both_sides(token, monkeypatch):
    monkeypatch.setenv("SPECULOSCOPE_TOKEN", token)
    with pytest.raises(UserError, match="only ASCII letters"):
        choose_backend(url="http://gpu:8700")
    with pytest.raises(UserError, match="only ASCII letters"):
        create_app(FakeBackend(), token)
    status, _, err = command("serve", "--port", str(free_port()))
    assert status == 2 and "only ASCII letters" in err


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(404, text="<html>"), "HTTP status 404"),
        ({"kind": "hologram", "data": {}}, "of the same version?"),
        ({"kind": "finished", "data": {"run": {"lanes": 3}}}, "not an event of a comparison"),
    ],
    ids=["page", "event", "run"],
)
def test_a_server_of_another_version_gets_that_sentence(answer, words):
    def say(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, httpx.Response):
            return answer
        return httpx.Response(200, text=json.dumps({"run": request.url.path.split("/")[2], "seq": 0, **answer}) + "\n")

    assert words in last_sentence(compare(answered(say)))


def test_pairs_that_cannot_be_listed_are_a_sentence_in_the_log(caplog):
    class Broken(FakeBackend):
        def pairs(self):
            raise UserError("x/pair.json does not contain a JSON object.")

    with served_at(Broken()) as url:
        assert RemoteBackend(url).pairs() == []
    assert "does not contain a JSON object" in caplog.text
    assert answered(lambda request: httpx.Response(200, json=[{"label": "a pair"}])).pairs() == []
    assert "same version" in caplog.text


def raises_at_once():
    raise OSError("disk on fire")
    yield


def falls_silent():
    yield "queued", {"place": 0}


@pytest.mark.parametrize("events, words", [(raises_at_once, "disk on fire"), (falls_silent, "ended without a result")])
def test_a_backend_that_breaks_its_promise_still_ends_the_run(events, words):
    class Broken(FakeBackend):
        def _run(self, kind, options, cancel, run):
            return events()

    with served_at(Broken(), max_runs=1) as url:
        for _ in range(2):  # and its place is free again
            assert words in last_sentence(compare(RemoteBackend(url)))


def test_stop_does_not_wait_for_a_server_that_does_not_answer():
    cancel = threading.Event()
    cancel.set()
    events = list(RemoteBackend("http://127.0.0.1:9", patience_s=600).compare(small_request(), cancel))
    assert [event.kind for event in events] == ["cancelled"]


def test_closing_the_front_end_in_the_midst_is_a_sentence():
    with served_at() as url:
        remote = RemoteBackend(url)
        stream, events = begin(remote)
        remote.close()
        assert last_sentence(events + list(stream)) == CLOSED


SERVE_ALONE = """
import sys
from decoding.backends import local
from decoding.cli import main
from tests.page_fakes import ScriptedBackend
local.LocalBackend = lambda **options: ScriptedBackend()  # without a worker, which would load the default pair
main(["serve", *sys.argv[1:]])
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_serve_serves_and_ends_on_a_signal_in_the_middle_of_a_run(ending, tmp_path):
    port = free_port()
    words = [sys.executable, "-c", SERVE_ALONE, "--port", str(port)]
    environment = {**os.environ, "SPECULOSCOPE_TOKEN": "s3cret", "TMPDIR": str(tmp_path)}
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment)
    assert f"http://127.0.0.1:{port}" in server.stderr.readline()
    patient = httpx.Client(transport=httpx.HTTPTransport(retries=20), timeout=web.PATIENCE_S)
    assert patient.get(f"http://127.0.0.1:{port}/health").json()["status"] == "ok"
    assert web.get(f"http://127.0.0.1:{port}/pairs").status_code == 401
    run = {"url": f"http://127.0.0.1:{port}/runs/a-run-of-it", "headers": {"Authorization": "Bearer s3cret"}}
    asked = {"kind": "compare", "options": {"prompt": "def endless():", "lanes": ["autoregressive", "static:5"]}}
    assert web.put(**run, json=asked).status_code == 201
    with web.stream("GET", **run | {"url": run["url"] + "/events"}) as events:
        lines = events.iter_lines()  # the reader stays
        assert "queued" in next(lines)
        server.send_signal(ending)
        server.send_signal(ending)  # impatient
        assert server.wait(timeout=60) == 0
    assert "Traceback" not in server.stderr.read()
    assert not list(tmp_path.iterdir())
