"""Turns a backend's events into deltas for the page, at most about fifteen per second.

A comparison runs in a thread that iterates over the backend; the page's event loop sleeps until something has
arrived, waits a moment for more, and sends all of it as one numbered delta
``{"run": id, "seq": n, "events": [{"kind", "data"}, ...]}``, where ``seq`` is the number of its first event. With
the first repeat comes the payload of the run as far as it is decoded, with the last event that of the whole.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from decoding.backends.base import Backend
from decoding.errors import UserError
from decoding.records.events import LAST_KINDS, Event, new_id
from decoding.records.pairs import is_asked
from decoding.records.request import CompareRequest
from decoding.records.run_file import run_from_json

from .player.names import lane_heading
from .player.payload import prompt_end, run_payload
from .store import RunStore
from .visitors import check_share

PERIOD_S = 0.07  # between two deltas
BROKEN = "Something failed on the server; this is not your fault. Try again; the server's log has the details."

log = logging.getLogger(__name__)
Batch = list[dict[str, Any]]  # [{"kind", "data"}, ...]


class Feed:
    """The events of one long job, passed from its thread to the event loop and merged."""

    def __init__(
        self, start: Callable[[threading.Event], Iterator[Event]], translate: Callable[[Event], Event] = lambda e: e
    ) -> None:
        """``start(cancel)`` gives the events; ``translate`` turns each into what the page wants."""
        self.cancel = threading.Event()
        self.run = ""
        self._start, self._translate = start, translate
        self._pending: list[Event] = []
        self._lock = threading.Lock()

    async def batches(self) -> AsyncIterator[Batch]:
        """Merged events, at most one batch per PERIOD_S; the last batch ends with a last event.

        Closing this iterator cancels the job.
        """
        self._loop, self._ready = asyncio.get_running_loop(), asyncio.Event()
        context = contextvars.copy_context()  # ZeroGPU finds the visitor, whose quota is used, in the context
        threading.Thread(target=context.run, args=(self._pump,), name="feed", daemon=True).start()
        try:
            last = False
            while not last:
                await self._ready.wait()
                batch, last = self._take()
                if batch:
                    yield batch
                    await asyncio.sleep(0 if last else PERIOD_S)
        finally:
            self.cancel.set()

    def _pump(self) -> None:
        try:
            for event in self._start(self.cancel):
                self.run = event.run
                self._put(self._translate(event))
                if event.is_last:
                    return
            self._put(self._failure("The comparison ended without a result; try again."))
        except UserError as error:
            self._put(self._failure(str(error)))
        except Exception:
            log.exception("A job of the page failed")
            self._put(self._failure(BROKEN))

    def _failure(self, message: str) -> Event:
        return Event(self.run, -1, "failed", {"message": message})

    def _put(self, event: Event) -> None:
        with self._lock:
            self._pending.append(event)
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the event loop has closed: the server is shutting down
            self.cancel.set()

    def _take(self) -> tuple[Batch, bool]:
        self._ready.clear()
        with self._lock:
            events, self._pending = self._pending, []
        return merged(events), bool(events) and events[-1].kind in LAST_KINDS


def merged(events: list[Event]) -> Batch:
    """Events as plain dicts; neighbouring iterations of one lane become one, those of later repeats are left out.

    Later repeats only repeat the measurement.
    """
    batch: Batch = []
    for event in events:
        if event.kind == "heartbeat" or (event.kind == "iterations" and event.data.get("repeat")):
            continue
        before = batch[-1] if batch else None
        if event.kind == "iterations" and before and _continues(before, event.data):
            before["data"]["items"] += event.data["items"]
            before["data"].setdefault("texts", {}).update(event.data.get("texts", {}))
        else:
            batch.append({"kind": event.kind, "data": _copied(event)})
    return batch


def _continues(before: dict[str, Any], data: dict[str, Any]) -> bool:
    return before["kind"] == "iterations" and before["data"]["lane"] == data["lane"]


def _copied(event: Event) -> dict[str, Any]:
    data = dict(event.data)
    if event.kind == "iterations":
        data["items"], data["texts"] = list(data["items"]), dict(data.get("texts", {}))
    return data


def race_feed(backend: Backend, store: RunStore, request: CompareRequest) -> Feed:
    """A comparison. Runs in its events are kept in ``store`` and replaced by the page's payload."""

    def translate(event: Event) -> Event:
        if event.kind == "started":
            return _headed(event)
        if event.kind not in ("replay", "finished"):
            return event
        data = dict(event.data)
        run = run_from_json(json.dumps(data.pop("run")))
        store.add(run)
        return Event(event.run, event.seq, event.kind, {**data, "payload": run_payload(run, origin="live")})

    return Feed(lambda cancel: backend.compare(request, cancel), translate)


class Visits:
    """The visitors' current jobs. A task is a kind of job of which a visitor has one at a time."""

    def __init__(self) -> None:
        self._live: set[Live] = set()
        self._lock = threading.Lock()

    async def deltas(self, feed: Feed, visitor: str, task: str, address: str = "") -> AsyncIterator[str]:
        """The deltas of ``feed`` as JSON text; a single failure if the visitor has too many jobs.

        Closing the iterator cancels the job.
        """
        try:
            with self.present(feed, visitor, task, address) as live:
                async for batch in feed.batches():
                    yield live.number(batch)
        except UserError as error:
            yield delta_of("failed", message=str(error))

    @contextmanager
    def present(self, feed: Feed, visitor: str, task: str, address: str = "") -> Iterator[Live]:
        """Registers ``feed`` as a current job and cancels it at the end. Raises UserError if there are too many.

        ``address``: the visitor's internet address, "" if it does not matter.
        """
        live = Live(feed, visitor, task, address)
        with self._lock:
            of_session = sum(one.visitor == visitor for one in self._live)
            of_address = sum(one.address == address for one in self._live) if address else 0
            check_share(of_session, of_address)
            self._live.add(live)
        try:
            yield live
        finally:
            feed.cancel.set()
            with self._lock:
                self._live.discard(live)

    def stop(self, visitor: str, task: str | None = None) -> None:
        """Cancels the jobs of ``visitor`` (of one task or all); others' jobs continue."""
        for live in self._of(lambda one: one.visitor == visitor and task in (None, one.task)):
            live.feed.cancel.set()

    def missed(self, run: str, first: int) -> list[str]:
        """The deltas of a running job, from event number ``first`` on."""
        found = self._of(lambda one: one.feed.run == run)
        return [delta for live in found for number, delta in live.sent if number >= first]

    def _of(self, wanted: Callable[[Live], bool]) -> list[Live]:
        with self._lock:
            return [live for live in self._live if wanted(live)]


class Live:
    """One current job: its visitor, and everything sent so far (for pages that missed something)."""

    def __init__(self, feed: Feed, visitor: str, task: str, address: str = "") -> None:
        self.feed, self.visitor, self.task, self.address = feed, visitor, task, address
        self.sent: list[tuple[int, str]] = []  # (number of the first event, delta)
        self._events = 0

    def number(self, batch: Batch) -> str:
        """``batch`` as a delta for the page, with the number of its first event."""
        delta = {"run": self.feed.run, "seq": self._events, "events": batch}
        self.sent.append((self._events, _written(delta)))
        self._events += len(batch)
        return self.sent[-1][1]


def _headed(event: Event) -> Event:
    """ "started" with each lane's heading and the prompt's end, which the player shows."""
    settings, lanes = event.data["settings"], [lane_heading(lane) for lane in event.data["lanes"]]
    prompt = prompt_end(settings["prompt"], is_asked(settings["chat"], event.data["pair"]["name"]))
    known = {"lanes": lanes, "prompt": prompt, "repeats": settings["repeats"]}
    return Event(event.run, event.seq, "started", known)


def delta_of(kind: str, **data: Any) -> str:
    """A delta of one event outside any job; its run name is always new, so that the page accepts it."""
    name = f"page-{new_id()}"
    return _written({"run": name, "seq": 0, "events": [{"kind": kind, "data": data}]})


def _written(delta: dict[str, Any]) -> str:
    """Compact JSON without "<", so that nothing on the way to the player sees markup."""
    return json.dumps(delta, separators=(",", ":")).replace("<", "\\u003c")
