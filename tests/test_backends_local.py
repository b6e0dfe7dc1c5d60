"""The worker process and its queue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from decoding.backends import local
from decoding.backends.base import CLOSED
from decoding.backends.local import LocalBackend
from decoding.records.request import Grant
from decoding.records.run_file import run_from_dict
from tests.fakes import ScriptedRunner, check_stream, compare, small_request, until
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def backend():
    backend = LocalBackend(ScriptedRunner)
    yield backend
    backend.close()


def kinds(events):
    return [event.kind for event in events]


def test_a_comparison_arrives_whole_and_in_order(backend):
    events = compare(backend)
    check_stream(events)
    assert kinds(events)[0] == "queued" and kinds(events)[-1] == "finished"
    assert {"started", "lane_started", "iterations", "lane_finished"} <= set(kinds(events))
    assert run_from_dict(events[-1].data["run"]).settings.prompt == "def f(x):\n"
    assert backend._worker.pid != os.getpid()  # the models are in another process


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"prompt": "  "}, "empty"),
        ({"lanes": ["autoregressive", "static:0"]}, "autoregressive"),
        ({"lanes": ["autoregressive", "warp:9"]}, "no policy 'warp'"),
    ],
)
def test_what_cannot_run_is_refused_before_it_waits(backend, changes, words):
    events = compare(backend, **changes)
    assert kinds(events) == ["failed"] and words in events[0].data["message"]


def test_a_fault_and_a_refusal_inside_the_worker_are_sentences(backend):
    fault, refusal = compare(backend, "#fail")[-1], compare(backend, "#refuse")[-1]
    assert fault.kind == refusal.kind == "failed"
    assert "RuntimeError: something broke" in fault.data["message"] and "Traceback" not in fault.data["message"]
    assert refusal.data["message"] == "This pair cannot do that: choose another."


def test_a_crash_is_a_sentence_and_the_next_run_works(backend):
    events = compare(backend, "#crash")
    check_stream(events)
    assert events[-1].kind == "failed" and "signal 9" in events[-1].data["message"]
    assert "iterations" in kinds(events)  # the part that had arrived is kept
    assert compare(backend)[-1].kind == "finished"


def test_a_worker_killed_while_idle_is_replaced_without_a_word(backend):
    compare(backend)
    old = backend._worker.pid
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: backend._worker is None)
    assert compare(backend)[-1].kind == "finished"


def test_a_process_that_hangs_is_replaced(backend, monkeypatch):
    compare(backend)
    monkeypatch.setattr(local, "SILENT_S", 0.5)
    events = []
    for event in backend.compare(small_request("#slow"), threading.Event()):
        events.append(event)
        if event.kind == "iterations" and backend._worker is not None:
            os.kill(backend._worker.pid, signal.SIGSTOP)
    assert events[-1].kind == "failed" and "no sign of life" in events[-1].data["message"]
    monkeypatch.undo()
    assert compare(backend)[-1].kind == "finished"


def test_results_that_are_no_numbers_are_a_sentence_and_the_process_lives(backend):
    compare(backend)
    process = backend._worker.pid
    events = compare(backend, "#nan")
    assert events[-1].kind == "failed" and "not numbers (NaN or infinite)" in events[-1].data["message"]
    assert compare(backend)[-1].kind == "finished" and backend._worker.pid == process


def test_cancel_ends_a_run_between_iterations(backend):
    cancel = threading.Event()
    events = []
    for event in backend.compare(small_request("#slow"), cancel):
        events.append(event)
        if event.kind == "iterations":
            cancel.set()
    check_stream(events)
    assert events[-1].kind == "cancelled"


def test_a_client_that_vanishes_frees_the_worker(backend):
    stream = backend.compare(small_request("#slow", max_new_tokens=2000), threading.Event())
    until(stream)
    stream.close()
    assert compare(backend)[-1].kind == "finished"


def test_waiting_runs_learn_their_places_and_may_withdraw(backend):
    first = backend.compare(small_request("#slow", max_new_tokens=500), threading.Event())
    until(first)
    cancel = threading.Event()
    second = backend.compare(small_request("second"), cancel)
    third = backend.compare(small_request("third"), threading.Event())
    assert (next(second).data, next(third).data) == ({"place": 1}, {"place": 2})
    cancel.set()
    assert kinds(second) == ["cancelled"]
    assert next(third).data == {"place": 1}
    first.close()
    assert kinds(third)[-1] == "finished"


def test_a_closed_stream_leaves_the_line(backend):
    first = backend.compare(small_request("#slow", max_new_tokens=500), threading.Event())
    next(first)
    waiting = backend.compare(small_request(), threading.Event())
    next(waiting)
    assert "1 waiting" in backend.status()
    waiting.close()
    assert "0 waiting" in backend.status()
    first.close()
    wait_until(lambda: "nothing is running" in backend.status())


def test_a_full_line_refuses_with_a_sentence():
    backend = LocalBackend(ScriptedRunner, max_waiting=1)
    try:
        streams = [backend.compare(small_request("#slow"), threading.Event()) for _ in range(3)]
        first = [next(stream) for stream in streams]
        assert kinds(first) == ["queued", "queued", "failed"]
        assert "already waiting" in first[2].data["message"]
    finally:
        backend.close()


def test_a_process_that_cannot_be_started_is_a_sentence_for_everyone(monkeypatch):
    def refuse(*arguments):
        raise OSError(12, "Cannot allocate memory")

    backend = LocalBackend(ScriptedRunner)
    with monkeypatch.context() as patched:
        patched.setattr(local, "WorkerProcess", refuse)
        for _ in range(2):
            events = compare(backend)
            check_stream(events)
            assert "could not be started (Cannot allocate memory): free some" in events[-1].data["message"]
    assert compare(backend)[-1].kind == "finished"
    backend.close()


def test_a_public_deployment_grants_less(monkeypatch):
    monkeypatch.setenv("SPECULOSCOPE_PUBLIC", "1")
    backend = LocalBackend(ScriptedRunner)
    try:
        assert "20,000" in compare(backend, "x" * 20_001)[-1].data["message"]
        assert "would decode" in compare(backend, max_new_tokens=512, repeats=50)[-1].data["message"]
        assert "shared" in list(backend.run_job("count", {"n": 1}, threading.Event()))[-1].data["message"]
        assert compare(backend)[-1].kind == "finished"
    finally:
        backend.close()


def test_closing_ends_the_worker_and_reaches_everyone():
    backend = LocalBackend(ScriptedRunner)
    stream = backend.compare(small_request("#slow"), threading.Event())
    until(stream)
    waiting = backend.compare(small_request(), threading.Event())
    next(waiting)
    pid = backend._worker.pid
    backend.close()
    assert [list(one)[-1].data["message"] for one in (stream, waiting)] == [CLOSED] * 2
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert compare(backend)[-1].kind == "failed"


def test_a_job_of_another_kind_has_progress_result_and_cancel(backend):
    events = list(backend.run_job("count", {"n": 3}, threading.Event()))
    check_stream(events)
    assert [e.data["fraction"] for e in events if e.kind == "progress"] == [0, 1 / 3, 2 / 3]
    assert events[-1].data == {"result": {"counted": 3}}
    cancel = threading.Event()
    cancel.set()
    assert list(backend.run_job("count", {"n": 500, "pause": 0.01}, cancel))[-1].kind == "cancelled"


def test_a_run_that_does_not_heed_cancel_is_ended(monkeypatch):
    monkeypatch.setattr(local, "UNHEEDED_S", 0.2)
    backend = LocalBackend(ScriptedRunner)
    try:
        cancel = threading.Event()
        stream = backend.compare(small_request("#slow #deaf", max_new_tokens=4000), cancel)
        until(stream)
        cancel.set()
        assert list(stream)[-1].kind == "cancelled"
        assert compare(backend)[-1].kind == "finished"
    finally:
        backend.close()


@pytest.mark.parametrize("prompt", ["#slow", "#slow #deaf"])
def test_a_run_that_takes_longer_than_is_granted_is_ended(monkeypatch, prompt):
    monkeypatch.setattr(local, "UNHEEDED_S", 0.2)
    backend = LocalBackend(ScriptedRunner, grant=Grant(max_seconds=1.5))
    try:
        events = compare(backend, prompt, max_new_tokens=4000)
        check_stream(events)
        assert events[-1].kind == "failed" and "longer than 1.5 seconds" in events[-1].data["message"]
        backend._grant = Grant()  # starting a process on the slowest machine
        assert compare(backend)[-1].kind == "finished"
    finally:
        backend.close()


def test_a_worker_s_temporary_files_go_with_it(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    backend = LocalBackend(ScriptedRunner)
    events = compare(backend, "#crash")
    assert events[-1].kind == "failed" and compare(backend)[-1].kind == "finished"
    assert len(list(tmp_path.iterdir())) == 1  # of the new worker
    backend.close()
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_a_reader_that_does_not_read_is_given_up(monkeypatch):
    monkeypatch.setattr(local, "STALL_S", 0.2)
    backend = LocalBackend(ScriptedRunner)
    try:
        idle = backend.compare(small_request("#flood"), threading.Event())
        next(idle)
        assert compare(backend)[-1].kind == "finished"  # the next visitor is served nevertheless
        events = list(idle)
        assert events[-1].kind == "failed" and "not read" in events[-1].data["message"]
        assert len(events) <= local.INBOX_SIZE + 2
    finally:
        backend.close()


def test_the_worker_dies_with_its_front_end_and_leaves_no_files(tmp_path):
    script = textwrap.dedent("""
        import sys, threading
        from decoding.backends.local import LocalBackend
        from tests.fakes import ScriptedRunner, small_request
        backend = LocalBackend(ScriptedRunner)
        stream = backend.compare(small_request("#slow", max_new_tokens=4000), threading.Event())
        while next(stream).kind != "iterations":
            pass
        print(backend._worker.pid, flush=True)
        sys.stdin.read()
    """)
    options = dict(
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    with subprocess.Popen([sys.executable, "-c", script], **options) as front:
        worker = int(front.stdout.readline())
        assert list(tmp_path.iterdir())
        front.kill()
    wait_until(lambda: not _alive(worker))
    assert not list(tmp_path.iterdir())


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_idle_worker_costs_nothing(backend):
    compare(backend)
    used = lambda: sum(os.times()[:2]) + _cpu_seconds(backend._worker.pid)  # noqa: E731
    before = used()
    time.sleep(1.0)
    assert used() - before < 0.1


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
