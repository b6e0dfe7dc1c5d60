"""Streams of runs for the page, as deltas: at most about fifteen per second, each with what has come since the last.

A delta is ``{"run": id, "seq": n, "next": m, "events": [{"kind", "data"}, ...]}``: the events from number ``seq`` to
before ``next``, merged. With the first repeat comes the payload of the run as far as it is decoded, with the last event
that of the whole.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from time import monotonic
from typing import TYPE_CHECKING, Any

from decoding.backends.base import Backend
from decoding.backends.stream import EventStream
from decoding.errors import UserError
from decoding.records.events import Event, new_id, whole
from decoding.records.pairs import is_asked
from decoding.records.request import CompareRequest
from decoding.records.run_file import run_from_dict

from .player.names import lane_heading
from .player.payload import prompt_end
from .store import RunStore

if TYPE_CHECKING:
    import gradio as gr

PERIOD_S = 0.07  # between two deltas, at least
SILENCE_S = 2.0  # and at most
BROKEN = "Something failed on the server; this is not your fault. Try again. The server's log has the details."

PER_SESSION = 4  # runs of one browser tab or one program: a race, both reports, and one to spare
PER_ADDRESS = 12  # per internet address: half of the places in the queue

Batch = list[dict[str, Any]]  # [{"kind", "data"}, ...]
Job = Callable[[threading.Event, str], Iterator[Event]]  # (cancel, run id) -> the run's events


def stream_of(job: Job, translate: Callable[[Event], Event] = lambda event: event) -> EventStream[Event]:
    """A new run's events as the page wants them: each is what ``translate`` makes of it."""
    run = new_id()

    def events(cancel: threading.Event) -> Iterator[Event]:
        return whole(run, map(translate, job(cancel, run)), BROKEN)

    return EventStream(run, events, _light)


def _light(event: Event) -> Event:
    """``event``, without its data if no page shows it: later repeats only repeat the measurement."""
    repeated = event.kind == "iterations" and event.data.get("repeat")
    return Event(event.run, event.seq, "heartbeat") if repeated else event


async def batches(stream: EventStream[Event]) -> AsyncIterator[tuple[int, int, Batch]]:
    """(number of the first event, of the one after the last, the events merged), at most one per PERIOD_S. After
    SILENCE_S an empty one: Gradio may lose news while another job ends, and so a page learns that it missed some.
    """
    first, at, last = 0, 0, monotonic()
    async for events in stream.follow(0, SILENCE_S):
        at += len(events)
        batch = merged(events)
        if batch or monotonic() - last > SILENCE_S:
            yield first, at, batch
            first, last = at, monotonic()
        await asyncio.sleep(0 if events and events[-1].is_last else PERIOD_S)


def merged(events: list[Event]) -> Batch:
    """Events as plain dicts; neighbouring iterations of one lane become one."""
    shown = [event for event in events if event.kind != "heartbeat"]
    batch: Batch = []
    for (kind, _), group in groupby(shown, lambda event: (event.kind, event.data.get("lane"))):
        parts = [event.data for event in group]
        if kind == "iterations":
            items = [item for data in parts for item in data["items"]]
            texts = {token: text for data in parts for token, text in data.get("texts", {}).items()}
            parts = [{**parts[0], "items": items, "texts": texts}]
        batch += [{"kind": kind, "data": data} for data in parts]
    return batch


def race_stream(backend: Backend, store: RunStore, request: CompareRequest) -> EventStream[Event]:
    """A comparison. Runs in its events are kept in ``store`` and replaced by the page's payload."""

    def translate(event: Event) -> Event:
        if event.kind == "started":
            return _headed(event)
        if event.kind not in ("replay", "finished"):
            return event
        data = dict(event.data)
        run = run_from_dict(data.pop("run"))
        store.add(run)
        return Event(event.run, event.seq, event.kind, {**data, "payload": store.payload("payload", run.id)})

    return stream_of(partial(backend.compare, request), translate)


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """A current job of a visitor. A task is a kind of job of which a visitor has one at a time."""

    stream: EventStream[Event]
    visitor: str
    task: str
    address: str  # on the internet, "" if it does not matter


class Visits:
    """The visitors' current jobs."""

    def __init__(self) -> None:
        self._current: set[Visit] = set()
        self._lock = threading.Lock()

    async def deltas(
        self, start: Callable[[], EventStream[Event]], visitor: str, task: str, address: str = ""
    ) -> AsyncGenerator[tuple[str, bool], None]:
        """The deltas of the job that ``start()`` begins, as JSON text, each with whether there is a result to look at
        by then; a failure if ``start()`` raises UserError or the visitor has too many jobs.

        Closing the iterator cancels the job.
        """
        has_result = False
        try:
            with self.present(start, visitor, task, address) as stream:
                async for first, after, batch in batches(stream):
                    has_result = has_result or any(event["kind"] == "replay" for event in batch)
                    yield _written({"run": stream.run, "seq": first, "next": after, "events": batch}), has_result
        except UserError as error:
            yield delta_of("failed", message=str(error)), has_result

    @contextmanager
    def present(
        self, start: Callable[[], EventStream[Event]], visitor: str, task: str, address: str = ""
    ) -> Iterator[EventStream[Event]]:
        """Begins a job with ``start()`` and cancels it at the end. Raises UserError if the visitor has too many."""
        with self._lock:
            of_session = sum(one.visitor == visitor for one in self._current)
            of_address = sum(one.address == address for one in self._current) if address else 0
            if of_session >= PER_SESSION:
                sentence = f"You have {of_session} runs in progress, the maximum: wait for one to end, or stop one."
                raise UserError(sentence)
            if of_address >= PER_ADDRESS:
                raise UserError(f"{of_address} runs from your address are in progress, the maximum: try again soon.")
            visit = Visit(start(), visitor, task, address)
            self._current.add(visit)
        try:
            yield visit.stream
        finally:
            visit.stream.cancel.set()
            with self._lock:
                self._current.discard(visit)

    def stop(self, visitor: str, task: str | None = None) -> None:
        """Cancels the jobs of ``visitor`` (of one task or all); others' jobs continue."""
        for visit in self._of(lambda one: one.visitor == visitor and task in (None, one.task)):
            visit.stream.cancel.set()

    def missed(self, run: str, first: int, after: int) -> Batch:
        """The events of a current job from number ``first`` to before ``after``."""
        found = self._of(lambda one: one.stream.run == run)
        return [event for one in found for event in merged(one.stream.kept(first, after))]

    def _of(self, wanted: Callable[[Visit], bool]) -> list[Visit]:
        with self._lock:
            return [visit for visit in self._current if wanted(visit)]


def _headed(event: Event) -> Event:
    """ "started" with each lane's heading and the prompt's end, which the player shows."""
    settings, lanes = event.data["settings"], [lane_heading(lane) for lane in event.data["lanes"]]
    prompt = prompt_end(settings["prompt"], is_asked(settings["chat"], event.data["pair"]["name"]))
    return Event(event.run, event.seq, "started", {"lanes": lanes, "prompt": prompt})


def delta_of(kind: str, **data: Any) -> str:
    """A delta of one event outside any job; its run name is always new, so that the page accepts it."""
    name = f"page-{new_id()}"
    return _written({"run": name, "seq": 0, "next": 1, "events": [{"kind": kind, "data": data}]})


def _written(delta: dict[str, Any]) -> str:
    """Compact JSON without "<", so that nothing on the way to the player sees markup."""
    return json.dumps(delta, separators=(",", ":")).replace("<", "\\u003c")


# -- whose run it is ------------------------------------------------------------------------------------------


def address_of(visitor: gr.Request | None) -> str:
    """The visitor's internet address; "" if unknown, as on this machine or network.

    Behind a proxy it is the last address in the proxy's header, which the proxy itself saw; earlier ones are
    unverified.
    """
    client = getattr(visitor, "client", None)
    host = getattr(client, "host", "") or ""
    if not _is_public(host):
        host = visitor.headers.get("x-forwarded-for", "").rpartition(",")[2].strip() if visitor is not None else ""
    return host if _is_public(host) else ""


def _is_public(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return False
