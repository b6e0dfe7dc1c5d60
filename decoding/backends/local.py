"""Comparisons on this machine: one worker process owns the models, and visitors queue for it."""

from __future__ import annotations

import atexit
import itertools
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from ..errors import Cancelled, UserError
from ..records.events import LAST_KINDS, Kind, RawEvents
from ..records.pairs import PairDescription, is_public
from ..records.request import ASK_FOR_LESS, PUBLIC, Grant
from .base import CLOSED, Backend, pairs_here
from .jobs import Jobs
from .worker import WorkerProcess

log = logging.getLogger(__name__)

MAX_WAITING = 24
POLL_S = 0.1  # interval at which a waiting stream checks its cancel flag, and a job under way is watched
UNHEEDED_S = 30.0  # how long a cancelled job may continue before its process is killed
SILENT_S = 60.0  # how long a worker at work may give no sign of life before it is replaced
SILENT = (
    "The process that runs the models did not respond for a minute and was ended. The part that was decoded is "
    "shown; a new process starts with the next run."
)


@dataclass(eq=False)
class _Job:
    number: int
    kind: str
    options: dict[str, Any]
    run_id: str
    inbox: queue.SimpleQueue[tuple[Kind, dict[str, Any]]] = field(default_factory=queue.SimpleQueue)
    stopped_at: float = 0.0  # when its process was asked to end it; 0: it was not
    ending: str = ""  # the sentence with which it fails, if it was not its reader who ended it

    def post(self, kind: Kind, **data: Any) -> None:
        self.inbox.put((kind, data))


class LocalBackend(Backend):
    """A first-come queue before one worker process.

    ``runner`` is the class that does the work inside the worker (importable by name); it is made once per
    process and keeps the last pair loaded. The process starts with the first job, and again after a crash.
    ``grant``: by default that of a public deployment, or the largest.
    """

    def __init__(
        self, runner: Callable[[], Any] = Jobs, max_waiting: int = MAX_WAITING, grant: Grant | None = None
    ) -> None:
        self._grant = grant or (PUBLIC if is_public() else Grant())
        self._target = f"{runner.__module__}:{runner.__qualname__}"
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._line: list[_Job] = []  # the first one is under way
        self._worker: WorkerProcess | None = None
        self._numbers = itertools.count()
        self._closed = False
        atexit.register(self.close)

    def _run(self, kind: str, options: dict[str, Any], cancel: threading.Event, run: str) -> RawEvents:
        job = _Job(next(self._numbers), kind, options, run)
        place = self._enter(job)
        try:
            yield "queued", {"place": place}
            yield from self._follow(job, cancel)
        finally:
            self._withdraw(job)

    def prepare(self) -> None:
        with self._lock:
            if self._closed:
                return
            try:
                self._worker = self._worker or self._start_worker()
            except OSError as error:
                log.warning("the process that runs the models could not be started yet: %s", error)
                return
            self._worker.send({"prepare": True})

    def pairs(self) -> list[PairDescription]:
        return pairs_here()

    def status(self) -> str:
        with self._lock:
            if not self._line:
                return "Runs on this machine; nothing is running."
            return f"Runs on this machine; one run is in progress, {len(self._line) - 1} waiting."

    def close(self) -> None:
        """End the worker; runs under way fail with a sentence."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            for job in self._line[1:]:
                job.post("failed", message=CLOSED)
            del self._line[1:]
            if self._worker is not None:
                self._worker.kill()

    def _follow(self, job: _Job, cancel: threading.Event) -> RawEvents:
        """The job's events as they come."""
        while True:
            if cancel.is_set() and self._withdraw(job):
                raise Cancelled
            try:
                kind, data = job.inbox.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if kind == "cancelled" and job.ending:
                kind, data = "failed", {"message": job.ending}
            yield kind, data

    def _enter(self, job: _Job) -> int:
        """Joins the queue; returns the number of jobs ahead. Raises UserError."""
        with self._lock:
            if self._closed:
                raise UserError(CLOSED)
            place = len(self._line)
            if place > self._max_waiting:
                raise UserError(f"{self._max_waiting} runs are already waiting, the maximum: try again soon.")
            self._line.append(job)
            if place == 0:
                self._begin()
            return place

    def _withdraw(self, job: _Job) -> bool:
        """Take a waiting job out of line (True), or ask the worker to end the running one (False)."""
        with self._lock:
            if job in self._line[1:]:
                self._line.remove(job)
                self._post_places()
                return True
            self._stop_running(job)
            return False

    @property
    def _running(self) -> _Job | None:
        return self._line[0] if self._line else None

    def _stop_running(self, job: _Job) -> None:
        """Ask the worker to end ``job``, if it is the one under way (lock held)."""
        if job is self._running and not job.stopped_at and self._worker is not None:
            job.stopped_at = monotonic()
            self._worker.send({"cancel": job.number})

    def _watch(self, job: _Job) -> None:
        """Ends ``job`` if it takes too long, and its process if that heeds no stop or hangs; in a thread of its own."""
        begun = monotonic()
        while True:
            sleep(POLL_S)
            with self._lock:
                if job is not self._running or self._worker is None:
                    return
                now = monotonic()
                if not job.stopped_at and now - begun > self._grant.max_seconds:
                    job.ending = _overdue_sentence(self._grant.max_seconds)
                    self._stop_running(job)
                is_silent = now - max(begun, self._worker.heard_at) > SILENT_S
                if is_silent or (job.stopped_at and now - job.stopped_at > UNHEEDED_S):
                    job.ending = SILENT if is_silent else job.ending
                    self._worker.kill()
                    return

    def _begin(self) -> None:
        """Gives the first job to the worker (lock held)."""
        job = self._line[0]
        message = {"job": job.number, "kind": job.kind, "options": job.options, "run": job.run_id}
        if self._worker is None or not self._worker.send(message):
            job.post("progress", stage="loading", message="Starting the process that runs the models", fraction=None)
            self._worker = None
            try:
                self._worker = self._start_worker()
            except OSError as error:
                why = error.strerror or type(error).__name__
                sentence = f"The process that runs the models could not be started ({why})"
                job.post("failed", message=f"{sentence}: free some memory and try again.")
                return self._next()
            self._worker.send(message)  # if it has already ended, _on_end reports that
        threading.Thread(target=self._watch, args=(job,), name="job-watch", daemon=True).start()
        self._post_places()

    def _start_worker(self) -> WorkerProcess:
        return WorkerProcess(self._target, self._on_message, self._on_end)

    def _post_places(self) -> None:
        for place, job in enumerate(self._line[1:], start=1):
            job.post("queued", place=place)

    def _on_message(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        """From the worker's reader thread."""
        with self._lock:
            job = self._running
            if worker is not self._worker or job is None or message["job"] != job.number:
                return
            job.post(message["kind"], **message["data"])
            if message["kind"] in LAST_KINDS:
                self._next()

    def _on_end(self, worker: WorkerProcess) -> None:
        with self._lock:
            if worker is not self._worker:
                return
            self._worker = None
            job = self._running
            if job is None:
                return
            if job.stopped_at and not job.ending:
                job.post("cancelled")
            else:
                why = job.ending or (CLOSED if self._closed else _crash_sentence(worker))
                job.post("failed", message=why)
            self._next()

    def _next(self) -> None:
        """The job under way has ended: start the next one (lock held)."""
        del self._line[0]
        if self._line:
            self._begin()


def _overdue_sentence(limit: float) -> str:
    most = f"{limit / 60:,.0f} minutes" if limit >= 120 else f"{limit:,.3g} seconds"
    return (
        f"The run took longer than {most}, the limit here, and was ended. The part that was decoded is "
        f"shown. {ASK_FOR_LESS}"
    )


def _crash_sentence(worker: WorkerProcess) -> str:
    return (
        f"The process that runs the models {worker.why_it_ended()}. The part that was decoded is shown; "
        "a new process starts with the next run."
    )
