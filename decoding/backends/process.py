"""The front end's handle of the worker process: starts it, writes to it, reads from it, ends it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from ..files import ProcessFolder

GPU_LOST = 70  # exit status of a worker whose GPU has faulted
END_S = 5.0  # how long to wait for a killed worker


class WorkerProcess:
    """One running ``decoding.backends.worker``.

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
        self._connection = Connection(ours.detach())
        self._writing = threading.Lock()
        self._on_message, self._on_end = on_message, on_end
        self.heard_at = monotonic()  # when it last sent anything
        threading.Thread(target=self._read, name="worker-reader", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: dict[str, Any]) -> bool:
        """Writes to the worker; False if it has ended."""
        try:
            with self._writing:
                self._connection.send_bytes(json.dumps(message).encode("ascii"))
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
        while True:
            try:
                message = json.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                break
            self.heard_at = monotonic()
            if message:  # else a sign of life
                self._on_message(self, message)
        self._process.kill()  # it may have closed its end and hang
        self._process.wait()
        with self._writing:
            self._connection.close()
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
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, *paths])}


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the program as Ctrl-C does, so that files are cleared away; afterwards it is handled as before."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
