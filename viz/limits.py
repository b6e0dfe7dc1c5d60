"""Limits of the page's server on requests: bounded sizes, few large ones at a time, no uploads, sentences for junk.

Gradio reads a whole body into memory before checking it, offers routes that this page does not use, and fails on names
that it does not know. This middleware runs before all of that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 2 * 2**20  # the longest prompt with every character escaped
MAX_FILE_BODY_BYTES = 60 * 2**20  # a run file of 40 MB as a string within JSON
MAX_HELD_BYTES = 160 * 2**20  # total of all bodies being read or processed
FILE_ROUTE = "/component_server"  # where the page sends the run files that visitors open
UNUSED_ROUTES = (  # of Gradio
    "/upload",
    "/upload_progress",
    "/process_recording",
    "/deep_link",
    "/stream/",
    "/proxy=",
    "/vibe-",
    "/run-history",
    "/dev/reload",
    "/custom_component/",
)
PREFIX = "/gradio_api"
BODY_METHODS = ("POST", "PUT", "PATCH", "DELETE")
JUNK = "This request to the server has the wrong form; reload the page."

log = logging.getLogger(__name__)


class BodyLimits:
    """ASGI middleware: refuses bodies that are too large, the routes that nothing here uses, and junk.

    A body is read completely before the application sees the request, so that a refusal is always a plain answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._held = app, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        route = scope["path"].removeprefix(PREFIX)
        if route.startswith(UNUSED_ROUTES):
            return await _refusal(404, "There is nothing at this address.")(scope, receive, send)
        if scope["method"] not in BODY_METHODS:
            return await self._answered(scope, receive, send)
        held = bytearray()
        try:
            most = MAX_FILE_BODY_BYTES if route.startswith(FILE_ROUTE) else MAX_BODY_BYTES
            await self._read(scope, receive, held, most)
            await self._answered(scope, _replayed(bytes(held), receive), send)
        except HTTPException as refusal:
            await _refusal(refusal.status_code, refusal.detail)(scope, receive, send)
        finally:
            self._held -= len(held)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application's answer, or a refusal: it raises for a component, function or endpoint that does not exist,
        for what these do runs later or reports its own faults.
        """
        begun = False

        async def note(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception as error:
            if begun:
                raise
            log.warning("a request was refused after %s", type(error).__name__)  # not what it said: it may hold a text
            await _refusal(400, JUNK)(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive, held: bytearray, most: int) -> None:
        """Reads the body into ``held``. Raises HTTPException."""
        too_large = f"The body is larger than {most // 2**20} MB, the limit of this server."
        if _announced(scope) > most:
            raise HTTPException(413, too_large)
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise HTTPException(400, "The connection was closed before the body was complete.")
            chunk, more = message.get("body", b""), message.get("more_body", False)
            if len(held) + len(chunk) > most:
                raise HTTPException(413, too_large)
            if self._held + len(chunk) > MAX_HELD_BYTES:
                raise HTTPException(503, "Many files are being read here at the moment: try again soon.")
            held += chunk
            self._held += len(chunk)


def _announced(scope: Scope) -> int:
    """The Content-Length header; 0 if it is missing or invalid."""
    text = Headers(scope=scope).get("content-length", "0")
    return int(text) if text.isdigit() and len(text) < 19 else 0


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that returns ``body`` first, then what follows (the disconnect)."""
    first: Iterator[Message] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        return next(first, None) or await receive()

    return replay


def _refusal(status: int, sentence: str) -> JSONResponse:
    headers = {"connection": "close"} if status == 413 else None  # does not wait for the rest of the body
    return JSONResponse({"detail": sentence}, status, headers)
