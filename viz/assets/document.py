"""Inserts the page's scripts into its document, so that the first paint waits neither for Gradio nor for other files.

Gradio's own ``head`` option reaches the browser as one of the settings that its scripts read when they have all been
loaded, about a second later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders

Send = Callable[[dict[str, Any]], Awaitable[None]]

BODY = b"<gradio-app"  # the element in which Gradio builds the page: there is nothing before it


class Document:
    """ASGI middleware: inserts ``head`` and ``body`` (HTML) into every page of ``app``."""

    def __init__(self, app: Callable, head: str, body: str) -> None:
        self._app, self._head, self._body = app, head.encode(), body.encode()

    async def __call__(self, scope: dict[str, Any], receive: Callable, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            send = _Response(send, self.written)
        await self._app(scope, receive, send)

    def written(self, page: bytes) -> bytes:
        """``page`` with both parts inserted; other documents than Gradio's pages are unchanged."""
        if BODY not in page:
            return page
        page = page.replace(b"</head>", self._head + b"</head>", 1)
        return page.replace(BODY, self._body + BODY, 1)


class _Response:
    """Buffers an HTML response until it is complete; passes on everything else."""

    def __init__(self, send: Send, write: Callable[[bytes], bytes]) -> None:
        self._send, self._write = send, write
        self._start: dict[str, Any] | None = None
        self._page = b""

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start" and _is_page(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._page += message.get("body", b"")
            if not message.get("more_body"):
                await self._finish(self._start)

    async def _finish(self, start: dict[str, Any]) -> None:
        page, headers = self._write(self._page), MutableHeaders(raw=list(start["headers"]))
        headers["content-length"] = str(len(page))
        await self._send({**start, "headers": headers.raw})
        await self._send({"type": "http.response.body", "body": page})


def _is_page(start: dict[str, Any]) -> bool:
    headers = Headers(raw=start["headers"])
    return headers.get("content-type", "").startswith("text/html") and "content-encoding" not in headers
