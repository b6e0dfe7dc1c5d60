"""The worker process: owns the models, runs one job at a time, sends its events over a pipe.

Started by :mod:`.process` as ``python -m decoding.backends.worker FD MODULE:NAME FOLDER``; FOLDER is its folder for
temporary files. Messages are JSON, both ways:
``{"job", "kind", "options", "run"}``, ``{"cancel": job}`` and ``{"prepare": true}`` come in, ``{"job", "kind",
"data"}`` go out, and ``{}`` every few seconds as a sign of life. The end of the pipe (the front end closed it or died)
ends the worker immediately; it removes its folder first.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import queue
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from time import sleep
from typing import Any, Protocol

from ..records.events import LAST_KINDS, RawEvents, guarded
from .process import GPU_LOST

log = logging.getLogger(__name__)

BEAT_S = 5.0
NOT_NUMBERS = (
    "The models gave results that are not numbers (NaN or infinite), so there is no run to show: choose the number "
    "format float32, or other models."
)


class _Line:
    """The way out, for several threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._writing = connection, threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Raises ValueError for a number that JSON does not have; nothing is sent then. Does not return if the front
        end is gone.
        """
        text = json.dumps(message, allow_nan=False, separators=(",", ":"))
        with self._writing:
            try:
                self._connection.send_bytes(text.encode("ascii"))
            except OSError:
                threading.Event().wait()  # until the reading thread, which learns of it as well, ends the process

    def beat(self) -> None:
        """Sends a sign of life again and again: a process that hangs sends none."""
        while True:
            sleep(BEAT_S)
            self.send({})


class JobRunner(Protocol):
    """Does the worker's jobs; created once per process, so it may keep models."""

    def run(self, kind: str, options: dict[str, Any], run_id: str, cancel: Callable[[], bool]) -> RawEvents: ...

    def prepare(self) -> None:
        """A run will soon be requested: begin to prepare for it."""

    def idle(self, busy: Callable[[], bool]) -> None:
        """There is no job: use the time until ``busy()``, or return."""

    def has_lost_device(self) -> bool:
        """Whether this process is unusable after a failure; it is then ended."""


def main(fd: str, target: str, folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the front end, which then closes the pipe
    logging.basicConfig(level=logging.WARNING, format="worker: %(levelname)s %(name)s: %(message)s")
    connection = Connection(int(fd))
    inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    cancelled: set[int] = set()
    threading.Thread(target=_read, args=(connection, inbox, cancelled, folder), daemon=True).start()
    line = _Line(connection)
    threading.Thread(target=line.beat, name="heartbeat", daemon=True).start()
    runner = _resolve(target)()
    while True:
        if inbox.empty():
            runner.idle(lambda: not inbox.empty())
        message = inbox.get()
        if "prepare" in message:
            runner.prepare()
        else:
            _serve(line, runner, message, cancelled)


def _resolve(target: str) -> Callable[[], JobRunner]:
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)


def _read(connection: Connection, inbox: queue.SimpleQueue, cancelled: set[int], folder: str) -> None:
    while True:
        try:
            message = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            shutil.rmtree(folder, ignore_errors=True)  # a front end that was killed cannot remove it
            os._exit(0)  # the front end is gone; the main thread may be in a forward pass
        if "cancel" in message:
            cancelled.add(message["cancel"])
        else:
            inbox.put(message)


def _serve(line: _Line, runner: JobRunner, message: dict[str, Any], cancelled: set[int]) -> None:
    job = message["job"]
    events = runner.run(message["kind"], message["options"], message["run"], lambda: job in cancelled)
    for kind, data in guarded(events):
        if kind == "failed" and runner.has_lost_device():
            log.error("%s: this process ends, a new one starts with the next job", data["message"])
            os._exit(GPU_LOST)  # the front end learns of it by the end of the pipe, so no job comes in between
        try:
            line.send({"job": job, "kind": kind, "data": data})
        except ValueError:  # what models computed, not what this program did
            kind = "failed"
            line.send({"job": job, "kind": kind, "data": {"message": NOT_NUMBERS}})
        if kind in LAST_KINDS:
            break
    cancelled.discard(job)


if __name__ == "__main__":
    main(*sys.argv[1:])
