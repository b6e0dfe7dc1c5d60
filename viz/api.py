"""The endpoint for programs: ``compare``, typed and streaming, for gradio_client or plain HTTP."""

# No "from __future__ import annotations" here: Gradio reads the real types of this signature.

import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import gradio as gr

from decoding.backends.base import Backend
from decoding.errors import UserError
from decoding.records.events import LAST_KINDS
from decoding.records.request import DEFAULT_LANES, request_from_dict

from .session import Feed, Visits
from .settings import CHAT
from .visitors import address_of

GRACE_S = 20.0  # how long a run continues if nobody fetches its results, as on a served backend
UNREAD = "The results were not read for too long, so the run was ended: start it again."

DESCRIPTION = """Decode one prompt with several lookahead policies and compare them.

Streams events {run, seq, kind, data}; the last one is finished (data.run is the whole run file), cancelled, or
failed (data.message says why). In events of kind iterations, data.items is keyed by the iteration's index."""


def keyed_items(event: dict[str, Any]) -> dict[str, Any]:
    """``event`` with its list of iterations as a dict by iteration index ("0", "1", ...).

    Gradio sends the difference to the last event and shifts deletions in nested lists once too often
    (gradio.utils.diff): a client would fail on the next event with shorter lists.
    """
    data = event["data"]
    if event["kind"] != "iterations":
        return event
    first = data["first"]
    return {**event, "data": {**data, "items": {str(first + i): item for i, item in enumerate(data["items"])}}}


class Unread:
    """Detects that nobody has read a run's events for longer than GRACE_S.

    Gradio continues an event whose caller has gone away or never asked for the results, and keeps all of it.
    """

    def __init__(self, waiting: Callable[[], int], grace_s: float = GRACE_S) -> None:
        """``waiting()``: number of messages that the caller has not fetched."""
        self._waiting, self._grace_s = waiting, grace_s
        self._least, self._since = 0, time.monotonic()

    def too_long(self) -> bool:
        """Whether no message has been fetched for longer than the time of grace. To be called regularly."""
        waiting, now = self._waiting(), time.monotonic()
        if waiting <= self._least or not waiting:
            self._since = now
        self._least = waiting
        return now - self._since > self._grace_s


def make_compare(
    backend: Backend, visits: Visits, waiting: Callable[[str], int] = lambda session: 0
) -> Callable[..., AsyncIterator[dict[str, Any]]]:
    """The endpoint's function, bound to ``backend``.

    ``waiting(session)``: number of messages that the session has not fetched.
    """

    async def compare(
        visitor: gr.Request,
        prompt: str,
        lanes: list[str] = list(DEFAULT_LANES),  # noqa: B006 (Gradio shows the default; it is never changed)
        max_new_tokens: int = 128,
        pair: str = "",
        temperature: float = 0.0,
        rule: Literal["greedy", "coupling", "sampling"] = "greedy",
        seed: int = 0,
        repeats: int = 3,
        chat: Literal["", "ask", "continue"] = "",
        system: str = "",
        weights: Literal["auto", "int4"] = "auto",
    ) -> AsyncIterator[dict]:
        session = visitor.session_hash or ""
        try:
            if not isinstance(chat, str) or chat not in CHAT:
                raise UserError('chat must be "ask", "continue", or "" for what the pair is made for.')
            request = request_from_dict(
                {
                    "prompt": prompt,
                    "lanes": lanes.split(",") if isinstance(lanes, str) else lanes,
                    "max_new_tokens": max_new_tokens,
                    "pair": pair,
                    "temperature": temperature,
                    "rule": rule,
                    "seed": seed,
                    "repeats": repeats,
                    "chat": CHAT[chat],
                    "system": system,
                    "weights": weights,
                }
            )
            feed = Feed(lambda cancel: backend.compare(request, cancel))
            with visits.present(feed, session, "api", address_of(visitor)):
                async for event in _read(feed, Unread(lambda: waiting(session))):
                    yield event
        except UserError as error:
            yield {"run": "", "seq": 0, "kind": "failed", "data": {"message": str(error)}}

    return compare


async def _read(feed: Feed, unread: Unread) -> AsyncIterator[dict[str, Any]]:
    """The numbered events of ``feed`` for programs, as long as they are fetched."""
    seq = 0
    async for batch in feed.batches():
        for event in batch:
            yield {"run": feed.run, "seq": seq, **keyed_items(event)}
            seq += 1
        if batch[-1]["kind"] not in LAST_KINDS and unread.too_long():
            yield {"run": feed.run, "seq": seq, "kind": "failed", "data": {"message": UNREAD}}
            return
