"""A backend served over HTTP: ``python -m decoding serve`` on the machine with the GPU.

    PUT    /runs/ID                 {"kind": "compare", "options": {...}}   start; again with the same ID: no effect
    GET    /runs/ID/events?from=N   NDJSON, the events from number N on, to the run's last
    DELETE /runs/ID                 cancel, or forget a finished run
    GET    /pairs, GET /health, GET /metrics (for Prometheus)

All events of a run are kept until it is forgotten, so a broken connection loses nothing: the client asks for those from
the first that it lacks. A run without a reader is cancelled, or if it has finished forgotten, after a grace period.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from ..errors import UserError
from ..records.events import Event, event_to_json
from ..records.request import SETTINGS, request_from_dict
from .base import Backend, check_token
from .metrics import Metrics
from .stream import EventStream

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 2 * 2**20
KINDS = ("compare", "evaluate")
RUN_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
HEARTBEAT = '{"run":"-","seq":0,"kind":"heartbeat","data":{}}\n'


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server."""

    max_runs: int = 32  # running or waiting
    any_model: bool = False  # whether a client may name its own target and draft
    grace_s: float = 20.0  # how long a run continues without a reader
    heartbeat_s: float = 0.5


class Session:
    """One run on the server: the ``body`` that asked for it, and the stream of its events as lines, which the newest
    reader gets.

    All of it runs in the event loop's thread.
    """

    def __init__(self, stream: EventStream[str], body: bytes, limits: Limits, forget: Callable[[str], Any]) -> None:
        self.stream, self.body = stream, body
        self._limits, self._forget = limits, forget
        self._reader = 0  # the number of the newest one, which takes over from an older one
        self.is_read = False  # a reader was given the last event
        self._grace = self._begin_grace()

    def take_over(self, start: int) -> int:
        """Registers a new reader, from event ``start`` on; returns its number. It must :meth:`leave` at its end."""
        if start > self.stream.next:
            raise HTTPException(400, f"Event {start} does not exist yet: request {self.stream.next}.")
        self._grace.cancel()
        self._reader += 1
        return self._reader

    def leave(self, reader: int) -> None:
        """That reader is gone: without another one, the run ends after the time of grace."""
        if reader == self._reader:
            self._grace = self._begin_grace()

    async def lines(self, start: int, reader: int) -> AsyncIterator[str]:
        """Lines from number ``start`` on, to the run's last; heartbeats in between."""
        at = start
        async for lines in self.stream.follow(start, self._limits.heartbeat_s):
            if reader != self._reader:
                return
            at += len(lines)
            self.is_read = self.stream.ended and at == self.stream.next
            yield "".join(lines or [HEARTBEAT])

    def expire(self) -> None:
        """Ends the run; its reader, if there is one, gets no more."""
        self._grace.cancel()
        self._reader += 1
        self.stream.close()
        self._forget(self.stream.run)

    def _begin_grace(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._limits.grace_s, self.expire)


class Sessions:
    """The server's runs by id; starts them in order of arrival."""

    def __init__(self, backend: Backend, limits: Limits, metrics: Metrics) -> None:
        self._backend, self._limits, self._metrics = backend, limits, metrics
        self._known: dict[str, Session] = {}
        self._starting = asyncio.Lock()

    async def start(self, run: str, body: bytes) -> None:
        """Starts the run that ``body`` describes, once. Raises HTTPException, UserError."""
        try:
            await self._start(run, body)
        except (HTTPException, UserError):
            self._metrics.refuse()
            raise

    async def _start(self, run: str, body: bytes) -> None:
        if not RUN_ID.fullmatch(run):
            raise HTTPException(400, "A run's id consists of 8 to 64 letters, digits, - and _.")
        async with self._starting:
            if run in self._known:
                if self._known[run].body != body:
                    raise HTTPException(409, "There is already a run with this id and other settings.")
                return
            if sum(not session.stream.ended for session in self._known.values()) >= self._limits.max_runs:
                sentence = f"{self._limits.max_runs} runs are running or waiting, the maximum: try again soon."
                raise HTTPException(503, sentence)
            kind, options = _read_body(body, self._limits)
            self._backend.check_job(kind, options)

            def events(cancel: threading.Event) -> Iterator[Event]:
                return self._metrics.watched(self._backend.run_job(kind, options, cancel, run))

            stream = EventStream(run, events, lambda event: event_to_json(event) + "\n")
            self._known[run] = Session(stream, body, self._limits, self._known.pop)
            await anext(stream.follow(), None)  # it is in the queue now

    def get(self, run: str) -> Session:
        if run not in self._known:
            sentence = "The server does not know this run: it has ended, or the server was restarted. Start it again."
            raise HTTPException(404, sentence)
        return self._known[run]

    def close(self) -> None:
        for session in list(self._known.values()):
            session.expire()


def _read_body(body: bytes, limits: Limits) -> tuple[str, dict[str, Any]]:
    """The kind of the job and its options, those of a comparison completed. Raises HTTPException, UserError."""
    try:
        data = json.loads(body)
        kind, options = data["kind"], data["options"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise HTTPException(400, 'The body must be JSON: {"kind": "compare", "options": {...}}.') from error
    if kind not in KINDS or not isinstance(options, dict):
        raise HTTPException(400, f"The kind must be one of {', '.join(KINDS)}, its options an object.")
    is_foreign = options.get("target") or (kind == "compare" and options.get("draft"))  # others name one of the pair's
    if is_foreign and not limits.any_model:
        raise UserError("This server runs only the pairs that it lists: choose one of them by its name.")
    if kind == "compare":
        if unknown := sorted(options.keys() - SETTINGS.keys()):
            name = unknown[0][:40]
            raise UserError(f"This server does not know the setting {name}: is the front end of the same version?")
        options = asdict(request_from_dict(options))
    return kind, options


class _EventsResponse(StreamingResponse):
    """A session's lines from number ``start`` on, for a new reader, who leaves however the connection ends."""

    def __init__(self, session: Session, start: int) -> None:
        self._session, self._reader = session, session.take_over(start)
        unbuffered = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # for proxies in between
        super().__init__(session.lines(start, self._reader), 200, unbuffered, "application/x-ndjson")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._session.leave(self._reader)


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
    app.add_exception_handler(HTTPException, _explain)
    app.add_exception_handler(UserError, _explain)
    app.add_exception_handler(ClientDisconnect, lambda request, error: Response(status_code=400))  # nobody reads it
    guarded = Depends(_guard(token))
    _add_routes(app, backend, guarded)

    @app.get("/metrics", dependencies=[guarded])
    async def numbers() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return app


async def _explain(request: Request, error: Exception) -> Response:
    status, headers, sentence = 400, None, str(error)
    if isinstance(error, HTTPException):
        status, headers, sentence = error.status_code, error.headers, error.detail
    # In ASCII: a sentence may quote what the client sent, and half of a character cannot be encoded.
    return Response(json.dumps({"message": sentence}), status, headers, "application/json")


def _guard(token: str) -> Callable[[Request], None]:
    expected = check_token(token).encode()

    def check(request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if token and (scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), expected)):
            sentence = (
                "This server requires a token, and the one given is missing or wrong: "
                "start the front end with SPECULOSCOPE_TOKEN set to the server's."
            )
            raise HTTPException(401, sentence, {"WWW-Authenticate": "Bearer"})

    return check


def _add_routes(app: FastAPI, backend: Backend, guarded: Any) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "service": "speculoscope", "backend": await asyncio.to_thread(backend.status)}

    @app.get("/pairs", dependencies=[guarded])
    async def pairs() -> list[dict[str, Any]]:
        return [pair.to_dict() for pair in await asyncio.to_thread(backend.pairs)]

    @app.put("/runs/{run}", dependencies=[guarded], status_code=201)
    async def start(run: str, request: Request) -> dict[str, str]:
        await app.state.sessions.start(run, await _limited_body(request))
        return {"run": run}

    @app.get("/runs/{run}/events", dependencies=[guarded])
    async def events(run: str, request: Request) -> Response:
        start = request.query_params.get("from", "0")
        if not start.isascii() or not start.isdigit() or len(start) > 12:
            raise HTTPException(400, "from must be the number of an event.")
        return _EventsResponse(app.state.sessions.get(run), int(start))

    @app.delete("/runs/{run}", dependencies=[guarded], status_code=204)
    async def cancel(run: str) -> None:
        session = app.state.sessions.get(run)
        session.stream.cancel.set()
        if session.is_read:  # else the end of the run has crossed with this request: its reader gets it
            session.expire()


async def _limited_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"The body is larger than {MAX_BODY_BYTES // 1024} KB, the limit.")
    return bytes(body)
