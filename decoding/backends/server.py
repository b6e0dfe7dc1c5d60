"""A backend served over HTTP: ``python -m decoding serve`` on the machine with the GPU.

    PUT    /runs/ID                 {"kind": "compare", "options": {...}}   start; again with the same ID: no effect
    GET    /runs/ID/events?from=N   NDJSON, the events from number N on; acknowledges all before N
    DELETE /runs/ID                 cancel, or forget a finished run
    GET    /pairs, GET /health, GET /metrics (for Prometheus)

A stream of events ends after a batch, and the client requests the next one, which acknowledges all events before it. So
the buffer is bounded, and a broken connection loses nothing. When the buffer is full the run waits. A run without a
reader is cancelled after a grace period.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from ..errors import UserError, sentence_of
from ..records.events import Event, event_to_json
from ..records.request import CompareRequest, Grant, check_granted, check_long_job, request_from_dict
from .base import Backend, check_token
from .metrics import Metrics

log = logging.getLogger(__name__)

KINDS = ("compare", "evaluate", "drafts")
SETTINGS = frozenset(field.name for field in fields(CompareRequest))
RUN_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
HEARTBEAT = '{"run":"-","seq":0,"kind":"heartbeat","data":{}}\n'


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server."""

    max_runs: int = 32  # running or waiting
    max_body_bytes: int = 2 * 2**20
    grant: Grant = Grant()  # to each run
    any_model: bool = False  # whether a client may name its own target and draft
    window: int = 1000  # events kept for a client that has not acknowledged them
    grace_s: float = 20.0  # how long a run continues without a reader
    heartbeat_s: float = 0.5


class Refusal(Exception):
    """An HTTP status with a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Session:
    """One run on the server: its thread fills a bounded buffer, the newest reader empties it.

    All but :meth:`pump` runs in the event loop's thread.
    """

    def __init__(self, run: str, limits: Limits, forget: Callable[[str], None]) -> None:
        self.run = run
        self.cancel = threading.Event()
        self.ended = False
        self._limits, self._forget = limits, forget
        self._lines: deque[str] = deque()
        self._first = 0  # number of the event at the left end of the buffer
        self._reader = 0  # a newer reader takes over from an older one
        self._expired = False
        self._changed = asyncio.Condition()
        self._loop = asyncio.get_running_loop()
        self._expire_later()

    def pump(self, events: Iterator[Event]) -> None:
        """Moves the backend's events into the buffer (in a separate thread)."""
        for event in events:
            if self._loop.is_closed():
                return
            adding = asyncio.run_coroutine_threadsafe(self._add(event_to_json(event) + "\n", event.is_last), self._loop)
            adding.result()

    async def _add(self, line: str, is_last: bool) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._lines) < self._limits.window or self._expired)
            self.ended = self.ended or is_last
            if not self._expired:
                self._lines.append(line)
            self._changed.notify_all()

    async def take_over(self, start: int) -> int:
        """Registers a new reader and acknowledges all events before ``start``; returns the reader's number."""
        async with self._changed:
            if start < self._first:
                raise Refusal(410, f"Event {start} was read before and is no longer kept: start the run again.")
            if start > self._first + len(self._lines):
                raise Refusal(400, f"Event {start} does not exist yet: request {self._first + len(self._lines)}.")
            while self._first < start:
                self._lines.popleft()
                self._first += 1
            self._reader += 1
            self._changed.notify_all()
            return self._reader

    async def stream(self, start: int, reader: int) -> AsyncGenerator[str, None]:
        """Lines from number ``start`` on, at most half a window of them; heartbeats in between."""
        at, end = start, start + max(1, self._limits.window // 2)
        try:
            while at < end:
                lines = await self._wait_for(at, end, reader)
                if lines is None:
                    return
                yield "".join(lines) or HEARTBEAT
                at += len(lines)
                if self.ended and at == self._first + len(self._lines):
                    return
        finally:
            if reader == self._reader:
                self._expire_later()

    async def _wait_for(self, at: int, end: int, reader: int) -> list[str] | None:
        """The lines from ``at`` on; [] after a heartbeat's time; None if this reader's time is over."""
        async with self._changed:
            try:
                await asyncio.wait_for(
                    self._changed.wait_for(lambda: self._has(at) or reader != self._reader or self._expired),
                    self._limits.heartbeat_s,
                )
            except asyncio.TimeoutError:
                return []
            if reader != self._reader or self._expired:
                return None
            return [self._lines[i - self._first] for i in range(at, min(end, self._first + len(self._lines)))]

    def _has(self, at: int) -> bool:
        return at < self._first + len(self._lines)

    def _expire_later(self) -> None:
        self._loop.call_later(self._limits.grace_s, self._expire_unread, self._reader)

    def _expire_unread(self, reader: int) -> None:
        """Ends the run unless someone has come to read it after ``reader``."""
        if reader == self._reader:
            self.expire()

    def expire(self) -> None:
        """Ends the run because it has no reader."""
        self._expired = True
        self._lines.clear()
        self.cancel.set()
        self._forget(self.run)
        self._loop.create_task(self._wake())

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class Sessions:
    """The server's runs by id; starts them in order of arrival."""

    def __init__(self, backend: Backend, limits: Limits, metrics: Metrics) -> None:
        self._backend, self._limits, self._metrics = backend, limits, metrics
        self._known: dict[str, Session] = {}
        self._bodies: dict[str, bytes] = {}
        self._starting = asyncio.Lock()

    async def start(self, run: str, body: bytes) -> None:
        """Starts the run that ``body`` describes, once. Raises Refusal, UserError."""
        try:
            await self._start(run, body)
        except (Refusal, UserError):
            self._metrics.refuse()
            raise

    async def _start(self, run: str, body: bytes) -> None:
        if not RUN_ID.fullmatch(run):
            raise Refusal(400, "A run's id consists of 8 to 64 letters, digits, - and _.")
        async with self._starting:
            if run in self._known:
                if self._bodies[run] != body:
                    raise Refusal(409, "There is already a run with this id and other settings.")
                return
            if sum(not session.ended for session in self._known.values()) >= self._limits.max_runs:
                sentence = f"{self._limits.max_runs} runs are under way or waiting, the maximum: try again soon."
                raise Refusal(503, sentence)
            kind, options = _read_body(body, self._limits)
            session = Session(run, self._limits, self._forget)
            self._known[run], self._bodies[run] = session, body
            events = self._metrics.watched(self._events(kind, options, session))
            first = await asyncio.to_thread(next, events)  # it is in the queue now
            threading.Thread(target=session.pump, args=(chain((first,), events),), daemon=True).start()

    def get(self, run: str) -> Session:
        if run not in self._known:
            sentence = "The server does not know this run: it has ended, or the server was restarted. Start it again."
            raise Refusal(404, sentence)
        return self._known[run]

    def close(self) -> None:
        for session in list(self._known.values()):
            session.expire()

    def _events(self, kind: str, options: Any, session: Session) -> Iterator[Event]:
        if isinstance(options, CompareRequest):
            return _whole(session.run, lambda: self._backend.compare(options, session.cancel, session.run))
        return _whole(session.run, lambda: self._backend.run_job(kind, options, session.cancel, session.run))

    def _forget(self, run: str) -> None:
        self._known.pop(run, None)
        self._bodies.pop(run, None)


def _whole(run: str, events: Callable[[], Iterator[Event]]) -> Iterator[Event]:
    """All events; the run ends with a sentence even if a backend raises or ends without a last event."""
    seq, message = -1, "The run ended without a result. Start it again; the server's log may have the reason."
    try:
        for event in events():
            yield event
            seq = event.seq
            if event.is_last:
                return
        log.error("a backend ended run %s without a last event", run)
    except Exception as error:  # the boundary to the users of the other machine
        log.exception("a backend raised")
        message = sentence_of(error)
    yield Event(run, seq + 1, "failed", {"message": message})


def _read_body(body: bytes, limits: Limits) -> tuple[str, CompareRequest | dict[str, Any]]:
    try:
        data = json.loads(body)
        kind, options = data["kind"], data["options"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refusal(400, 'The body must be JSON: {"kind": "compare", "options": {...}}.') from error
    if kind not in KINDS or not isinstance(options, dict):
        raise Refusal(400, f"The kind must be one of {', '.join(KINDS)}, its options an object.")
    if (options.get("target") or options.get("draft")) and not limits.any_model:
        raise UserError("This server runs only the pairs that it lists: choose one of them by its name.")
    if kind == "compare":
        _check_known(options)
        return kind, check_granted(request_from_dict(options), limits.grant)
    check_long_job(limits.grant)
    return kind, options


def _check_known(options: dict[str, Any]) -> None:
    unknown = sorted(options.keys() - SETTINGS)
    if unknown:
        sentence = f"This server does not know the setting {unknown[0][:40]}: is the front end of the same version?"
        raise UserError(sentence)


class _EventsResponse(StreamingResponse):
    """Lines of JSON; closes their generator when the connection ends in any way."""

    def __init__(self, lines: AsyncGenerator[str, None]) -> None:
        unbuffered = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # for proxies in between
        super().__init__(lines, 200, unbuffered, "application/x-ndjson")
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._lines.aclose()


def create_app(backend: Backend, token: str = "", limits: Limits | None = None) -> FastAPI:
    """The server's application for ``backend``. A ``token`` is required as ``Authorization: Bearer TOKEN``.

    Raises UserError for a token that no header can carry.
    """
    limits, metrics = limits or Limits(), Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.sessions = Sessions(backend, limits, metrics)
        yield
        app.state.sessions.close()
        backend.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(Refusal, _explain)
    app.add_exception_handler(UserError, _explain)
    app.add_exception_handler(ClientDisconnect, lambda request, error: Response(status_code=400))  # nobody reads it
    _add_routes(app, backend, Depends(_guard(token)), limits)

    @app.get("/metrics", dependencies=[Depends(_guard(token))])
    async def numbers() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return app


async def _explain(request: Request, error: Exception) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if getattr(error, "status", 400) == 401 else None
    return JSONResponse({"message": str(error)}, getattr(error, "status", 400), headers)


def _guard(token: str) -> Callable[[Request], None]:
    expected = f"Bearer {check_token(token)}".encode()

    def check(request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if token and not hmac.compare_digest(given, expected):
            sentence = (
                "This server requires a token, and the one given is missing or wrong: "
                "start the front end with SPECULOSCOPE_TOKEN set to the server's."
            )
            raise Refusal(401, sentence)

    return check


def _add_routes(app: FastAPI, backend: Backend, guarded: Any, limits: Limits) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "service": "speculoscope", "backend": await asyncio.to_thread(backend.status)}

    @app.get("/pairs", dependencies=[guarded])
    async def pairs() -> list[dict[str, Any]]:
        return [_without_paths(asdict(pair)) for pair in await asyncio.to_thread(backend.pairs)]

    @app.put("/runs/{run}", dependencies=[guarded], status_code=201)
    async def start(run: str, request: Request) -> dict[str, str]:
        await app.state.sessions.start(run, await _limited_body(request, limits.max_body_bytes))
        return {"run": run}

    @app.get("/runs/{run}/events", dependencies=[guarded])
    async def events(run: str, request: Request) -> Response:
        start = request.query_params.get("from", "0")
        if not start.isascii() or not start.isdigit() or len(start) > 12:
            raise Refusal(400, "from must be the number of an event.")
        session = app.state.sessions.get(run)
        reader = await session.take_over(int(start))
        return _EventsResponse(session.stream(int(start), reader))

    @app.delete("/runs/{run}", dependencies=[guarded], status_code=204)
    async def cancel(run: str) -> None:
        session = app.state.sessions.get(run)
        session.cancel.set()
        if session.ended:
            session.expire()


def _without_paths(pair: dict[str, Any]) -> dict[str, Any]:
    """Removes the paths of embedded pairs from the answer."""
    if pair["kind"] == "embedded":
        pair["target"] = Path(pair["target"]).name
        pair["drafts"] = {name: Path(place).name for name, place in pair["drafts"].items()}
    return pair


async def _limited_body(request: Request, most: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise Refusal(413, f"The body is larger than {most // 1024} KB, the limit.")
    return bytes(body)
