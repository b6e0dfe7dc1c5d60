"""The worker process, which owns the models and runs one job at a time: the front end's handle of it, and what it does.

It runs as ``python -m decoding.backends.worker FD MODULE:NAME FOLDER``; FOLDER is its folder for temporary files.
Messages are JSON: ``{"job", "kind", "options", "run"}``, ``{"cancel": job}`` and ``{"prepare": true}`` to the process,
``{"job", "kind", "data"}`` from it, and ``{}`` every few seconds as a sign of life. The end of the pipe (the front end
closed it or died) ends the process immediately; it removes its folder first.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from ..files import ProcessFolder
from ..records.events import guarded

if TYPE_CHECKING:
    from .jobs import Jobs

log = logging.getLogger(__name__)

GPU_LOST = 70  # exit status of a worker whose GPU has faulted
END_S = 5.0  # how long to wait for a killed worker
BEAT_S = 5.0
NOT_NUMBERS = (
    "The models gave results that are not numbers (NaN or infinite), so there is no run to show: choose the number "
    "format float32, or other models."
)


class Pipe:
    """One side's end of the connection: JSON to and from the other side. Several threads may write."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._writing = connection, threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Raises ValueError for a number that JSON does not have, of which nothing is sent, and OSError if the other
        side has ended.
        """
        text = json.dumps(message, allow_nan=False, separators=(",", ":"))
        with self._writing:
            self._connection.send_bytes(text.encode("ascii"))

    def received(self) -> Iterator[dict[str, Any]]:
        """The other side's messages until it ends; blocks."""
        with suppress(EOFError, OSError):
            while True:
                yield json.loads(self._connection.recv_bytes())

    def close(self) -> None:
        with self._writing:
            self._connection.close()


class WorkerProcess:
    """The front end's handle: starts a worker, writes to it, reads from it, ends it.

    A fresh interpreter and not a fork or a multiprocessing child: it neither inherits the front end's threads
    nor imports the front end's main module. ``on_message`` and ``on_end`` are called in a thread that blocks
    on the pipe, so an idle worker costs nothing.
    """

    def __init__(
        self,
        target: str,
        on_message: Callable[[WorkerProcess, dict[str, Any]], None],
        on_end: Callable[[WorkerProcess], None],
    ) -> None:
        # It may be killed at any moment, so its folder for temporary files is removed from here.
        self._folder = ProcessFolder("speculoscope-worker-")
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "decoding.backends.worker", str(theirs.fileno()), target, self._folder.name],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=_environment() | {"TMPDIR": self._folder.name},
            )
        self._pipe = Pipe(Connection(ours.detach()))
        self._on_message, self._on_end = on_message, on_end
        self.heard_at = monotonic()  # when it last sent anything
        threading.Thread(target=self._read, name="worker-reader", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: dict[str, Any]) -> bool:
        """Writes to the worker; False if it has ended."""
        try:
            self._pipe.send(message)
        except OSError:
            return False
        return True

    def kill(self) -> None:
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # a driver may hold it: do not wait longer
            self._process.wait(END_S)  # so that it writes no file while its folder is removed
        self._folder.cleanup()  # the reading thread does so as well, but this program's end may cut it short

    def why_it_ended(self) -> str:
        """A clause on the exit status: "was killed by signal 9 (SIGKILL)"."""
        code = self._process.wait()
        if code == GPU_LOST:
            return "had to end, because the GPU accepts no work after a fault (see the program's log)"
        if code >= 0:
            return f"ended with status {code}; the program's log has the reason"
        hint = ", often for lack of memory" if -code == signal.SIGKILL else ""
        return f"was killed by signal {-code} ({_name_of(-code)}{hint})"

    def _read(self) -> None:
        for message in self._pipe.received():
            self.heard_at = monotonic()
            if message:  # else a sign of life
                self._on_message(self, message)
        self._process.kill()  # it may have closed its end and hang
        self._process.wait()
        self._pipe.close()
        self._folder.cleanup()
        self._on_end(self)


def _name_of(number: int) -> str:
    """ "SIGKILL" for 9; real-time signals have no names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"


def _environment() -> dict[str, str]:
    paths = [path for path in sys.path if path and os.path.isdir(path)]
    root = Path(__file__).resolve().parents[2]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *paths])}


# -- in the process itself


def main(fd: str, target: str, folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the front end, which then closes the pipe
    logging.basicConfig(level=logging.WARNING, format="worker: %(levelname)s %(name)s: %(message)s")
    front = Pipe(Connection(int(fd)))
    inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    cancelled: set[int] = set()
    threading.Thread(target=_read, args=(front, inbox, cancelled, folder), daemon=True).start()
    threading.Thread(target=_beat, args=(front,), name="heartbeat", daemon=True).start()
    module, name = target.split(":")
    runner: Jobs = getattr(importlib.import_module(module), name)()
    while True:
        if inbox.empty():
            runner.idle(lambda: not inbox.empty())
        message = inbox.get()
        if "prepare" in message:
            runner.prepare()
        else:
            _serve(front, runner, message, cancelled)


def _read(front: Pipe, inbox: queue.SimpleQueue, cancelled: set[int], folder: str) -> None:
    for message in front.received():
        if "cancel" in message:
            cancelled.add(message["cancel"])
        else:
            inbox.put(message)
    shutil.rmtree(folder, ignore_errors=True)  # a front end that was killed cannot remove it
    os._exit(0)  # the front end is gone; the main thread may be in a forward pass


def _beat(front: Pipe) -> None:
    """Sends a sign of life again and again: a process that hangs sends none."""
    while True:
        sleep(BEAT_S)
        _tell(front, {})


def _tell(front: Pipe, message: dict[str, Any]) -> None:
    """Sends ``message``. Does not return if the front end is gone. Raises ValueError as :meth:`Pipe.send`."""
    try:
        front.send(message)
    except OSError:
        threading.Event().wait()  # until the reading thread, which learns of it as well, ends the process


def _serve(front: Pipe, runner: Jobs, message: dict[str, Any], cancelled: set[int]) -> None:
    job = message["job"]
    events = runner.run(message["kind"], message["options"], message["run"], lambda: job in cancelled)
    for kind, data in guarded(events):
        if kind == "failed" and runner.has_lost_device():
            log.error("%s: this process ends, a new one starts with the next job", data["message"])
            os._exit(GPU_LOST)  # the front end learns of it by the end of the pipe, so no job comes in between
        try:
            _tell(front, {"job": job, "kind": kind, "data": data})
        except ValueError:  # what models computed, not what this program did
            _tell(front, {"job": job, "kind": "failed", "data": {"message": NOT_NUMBERS}})
            break
    cancelled.discard(job)


if __name__ == "__main__":
    main(*sys.argv[1:])
