"""The worker process and its queue."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from decoding.backends import base, local
from decoding.backends.base import CLOSED
from decoding.backends.local import LocalBackend
from decoding.records.request import Grant
from tests.fakes import (
    NeverStarts,
    ScriptedRunner,
    begin,
    check_stream,
    compare,
    last_sentence,
    small_request,
    stopped,
)
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def backend():
    backend = LocalBackend(ScriptedRunner)
    yield backend
    backend.close()


@pytest.fixture
def make_backend():
    """make_backend(runner, **options): a backend of the test's own, closed at its end."""
    made = []

    def make(runner=ScriptedRunner, **options) -> LocalBackend:
        made.append(LocalBackend(runner, **options))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def kinds(events):
    return [event.kind for event in events]


@pytest.mark.parametrize(
    "prompt, words, replaced",
    [
        ("#fail", "RuntimeError: something broke", False),
        ("#refuse", "This pair cannot do that: choose another.", False),
        ("#nan", "not numbers (NaN or infinite)", False),
        ("#crash", "signal 9", True),
    ],
)
def test_what_goes_wrong_in_the_worker_is_a_sentence_and_the_next_run_works(backend, prompt, words, replaced):
    compare(backend)
    process = backend._worker.pid
    events = compare(backend, prompt)
    assert words in last_sentence(events) and "Traceback" not in events[-1].data["message"]
    assert ("iterations" in kinds(events)) == (prompt != "#refuse")  # the part that had arrived stays
    assert compare(backend)[-1].kind == "finished" and (backend._worker.pid != process) == replaced


def test_after_a_fault_of_the_gpu_the_next_run_gets_a_new_process(make_backend):
    """CUDA refuses all further work of a process after an illegal access: if it were kept, every run would fail."""
    backend, waiting = make_backend(), None
    for event in (stream := backend.compare(small_request("#slow #gpufault"), threading.Event())):
        if event.kind == "queued":
            waiting = backend.compare(small_request(), threading.Event())
            next(waiting)
        last = event
    assert last.kind == "failed" and "the GPU accepts no work after a fault" in last.data["message"]
    assert list(stream) == [] and list(waiting)[-1].kind == "finished"  # it waited in the queue meanwhile


def test_a_process_that_ends_before_it_begins_is_a_sentence_each_time(make_backend):
    backend = make_backend(NeverStarts)
    for _ in range(2):
        sentence = last_sentence(compare(backend))
        assert "ended with status 3; the program's log has the reason" in sentence
        assert "a new process starts" in sentence


def test_signals_without_a_name_are_reported_by_number(backend):
    stream, events = begin(backend)
    os.kill(backend._worker.pid, 40)
    assert "was killed by signal 40 (a real-time signal)" in last_sentence(events + list(stream))


def test_a_worker_killed_while_idle_is_replaced_without_a_word(backend):
    compare(backend)
    old = backend._worker.pid
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: backend._worker is None)
    assert compare(backend)[-1].kind == "finished"


def test_a_process_that_hangs_is_replaced(backend, monkeypatch):
    compare(backend)
    monkeypatch.setattr(local, "SILENT_S", 3.0)  # a busy machine may not let the worker speak for a second
    stream, events = begin(backend)
    os.kill(backend._worker.pid, signal.SIGSTOP)
    assert "did not respond" in last_sentence([*events, *stream])
    monkeypatch.undo()
    assert compare(backend)[-1].kind == "finished"


def test_waiting_runs_learn_their_places_are_served_in_order_and_may_withdraw(make_backend):
    backend = make_backend(max_waiting=3)
    first, _ = begin(backend)
    cancel = threading.Event()
    cancels = [cancel, threading.Event(), threading.Event()]
    waiting = [backend.compare(small_request(f"waiting {i}"), one) for i, one in enumerate(cancels)]
    assert [next(stream).data for stream in waiting] == [{"place": place} for place in (1, 2, 3)]
    assert "already waiting" in last_sentence(compare(backend))
    cancel.set()
    assert kinds(waiting[0]) == ["cancelled"]
    assert [next(stream).data for stream in waiting[1:]] == [{"place": 1}, {"place": 2}]
    left = backend.compare(small_request(), threading.Event())
    next(left)
    assert "3 waiting" in backend.status()
    left.close()
    assert "2 waiting" in backend.status()
    first.close()  # its reader is gone, and the worker is free
    results = [list(stream) for stream in waiting[1:]]
    assert [events[-1].data["run"]["settings"]["prompt"] for events in results] == ["waiting 1", "waiting 2"]
    served = [event.data["served"] for events in results for event in events if event.kind == "started"]
    assert served == [2, 3]
    wait_until(lambda: "nothing is running" in backend.status())  # the worker says so after its last event


def test_where_nobody_may_wait_one_run_at_a_time_is_served(make_backend):
    backend = make_backend(max_waiting=0)
    stream, _ = begin(backend)
    assert "0 runs are already waiting, the maximum" in last_sentence(compare(backend))
    stream.close()
    wait_until(lambda: "nothing is running" in backend.status())
    assert compare(backend)[-1].kind == "finished"


def test_a_process_that_cannot_be_started_yet_is_a_sentence_for_everyone(make_backend, monkeypatch):
    def refuse(*arguments):
        raise OSError(12, "Cannot allocate memory")

    backend = make_backend()
    with monkeypatch.context() as patched:
        patched.setattr(local, "WorkerProcess", refuse)
        backend.prepare()  # nobody asked for anything: no fault
        for _ in range(2):
            assert "could not be started (Cannot allocate memory): free some" in last_sentence(compare(backend))
    check_stream(compare(backend))
    backend.close()
    backend.prepare()


class PreparedRunner(ScriptedRunner):
    """Reports what it was asked to do. Once prepared, it works in idle time until there is a job; a file shows this."""

    asked: list[str] = []

    def prepare(self):
        self.asked.append("prepare")

    def idle(self, busy):
        if self.asked:
            self.asked.append("idle")
            Path(os.environ["IDLE_FILE"]).touch()
            wait_until(busy)

    def run(self, kind, options, run_id, cancel):
        yield "finished", {"result": self.asked}


def test_a_worker_prepares_and_uses_idle_time_until_there_is_a_job(make_backend, monkeypatch, tmp_path):
    monkeypatch.setenv("IDLE_FILE", str(tmp_path / "idle"))
    backend = make_backend(PreparedRunner)
    backend.prepare()
    wait_until((tmp_path / "idle").exists)
    events = list(backend.run_job("evaluate", {}, threading.Event()))
    assert events[-1].data["result"] == ["prepare", "idle"]


def test_a_public_deployment_grants_less(make_backend, monkeypatch):
    monkeypatch.setenv("SPECULOSCOPE_PUBLIC", "1")
    backend = make_backend()
    assert "here at most 20,000 are read" in last_sentence(compare(backend, "x" * 20_001))
    assert "600 new tokens are too many: here at most 512." in last_sentence(compare(backend, max_new_tokens=600))
    assert "would decode 51,200 tokens" in last_sentence(compare(backend, max_new_tokens=512, repeats=50))
    assert "shared" in last_sentence(list(backend.run_job("count", {"n": 1}, threading.Event())))
    short = make_backend(grant=Grant(max_new_tokens=100))
    assert "128 new tokens are too many" in last_sentence(list(short.run_job("evaluate", {}, threading.Event())))
    assert compare(backend)[-1].kind == "finished"


def test_what_is_kept_of_a_pair_s_costs_is_said_once_however_often_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(base, "curves_here", lambda sources: {name: {"target": {}} for name in sources})
    monkeypatch.setattr(base, "format_here", lambda target: "The fastest.")
    monkeypatch.setattr(base, "chosen_here", lambda folder: None)
    for pair in [*base.pairs_here(), *base.pairs_here()]:
        assert pair.set_here == dict.fromkeys(pair.drafts, "The fastest.")


def test_closing_ends_the_worker_reaches_everyone_and_leaves_no_files(make_backend, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    backend = make_backend()
    compare(backend, "#crash")
    stream, _ = begin(backend)
    waiting = backend.compare(small_request(), threading.Event())
    next(waiting)
    pid = backend._worker.pid
    backend.close()
    assert [list(one)[-1].data["message"] for one in (stream, waiting)] == [CLOSED] * 2
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert last_sentence(compare(backend)) == CLOSED
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_a_job_of_another_kind_has_progress_result_and_cancel(backend):
    events = list(backend.run_job("count", {"n": 3}, threading.Event()))
    check_stream(events)
    counted = [e.data["fraction"] for e in events if e.kind == "progress" and e.data["stage"] != "loading"]
    assert counted == [0, 1 / 3, 2 / 3]
    assert events[-1].data == {"result": {"counted": 3}}
    cancel = threading.Event()
    cancel.set()
    assert list(backend.run_job("count", {"n": 500, "pause": 0.01}, cancel))[-1].kind == "cancelled"


def test_a_run_that_does_not_heed_cancel_is_ended(make_backend, monkeypatch):
    monkeypatch.setattr(local, "UNHEEDED_S", 0.2)
    backend = make_backend()
    assert stopped(backend, "#slow #deaf")[-1].kind == "cancelled"
    assert compare(backend)[-1].kind == "finished"


def test_a_run_that_takes_longer_than_is_granted_is_ended(make_backend):
    backend = make_backend(grant=Grant(max_seconds=1.5))
    assert "longer than 1.5 seconds" in last_sentence(compare(backend, "#slow", max_new_tokens=4000))
    backend._grant = Grant()  # starting a process on the slowest machine
    assert compare(backend)[-1].kind == "finished"


def test_a_reader_that_does_not_read_holds_nobody_up_and_loses_nothing(backend):
    idle = backend.compare(small_request(max_new_tokens=2000), threading.Event())
    events = [next(idle)]
    assert compare(backend)[-1].kind == "finished"  # the next visitor is served meanwhile
    events += idle
    check_stream(events)
    assert events[-1].kind == "finished" and len(events) > 4000


def test_the_worker_dies_with_its_front_end_and_leaves_no_files(tmp_path):
    script = textwrap.dedent("""
        import sys
        from decoding.backends.local import LocalBackend
        from tests.fakes import ScriptedRunner, begin
        backend = LocalBackend(ScriptedRunner)
        stream, _ = begin(backend)
        print(backend._worker.pid, flush=True)
        sys.stdin.read()
    """)
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], **pipes, env=own) as front:
        worker = int(front.stdout.readline())
        assert list(tmp_path.iterdir())
        front.kill()
    wait_until(lambda: not _alive(worker))
    assert not list(tmp_path.iterdir())


def _alive(pid: int) -> bool:
    try:
        return _stat(pid)[0] != "Z"
    except FileNotFoundError:
        return False


def _stat(pid: int) -> list[str]:
    """The fields of the process from its state on: man 5 proc."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def test_an_idle_worker_costs_nothing(backend):
    compare(backend)

    def used() -> float:
        """Processor seconds of this process and of the worker."""
        ticks = sum(map(int, _stat(backend._worker.pid)[11:13]))
        return sum(os.times()[:2]) + ticks / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(1.0)
    assert used() - before < 0.1
