"""The endpoint for programs: ``compare``, typed and streaming, for gradio_client or plain HTTP."""

# No "from __future__ import annotations" here: Gradio reads the real types of this signature.

import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from inspect import Parameter
from typing import Any, Literal

import gradio as gr

from decoding.backends.base import Backend
from decoding.backends.stream import EventStream
from decoding.errors import UserError
from decoding.records.events import LAST_KINDS, Event
from decoding.records.request import SETTINGS, read_request
from decoding.records.settings import Setting, with_parameters

from .session import Visits, address_of, batches, stream_of

OFFERED = {name: setting for name, setting in SETTINGS.items() if setting.endpoint}
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


def make_compare(
    backend: Backend, visits: Visits, waiting: Callable[[str], int]
) -> Callable[..., AsyncIterator[dict[str, Any]]]:
    """The endpoint's function, bound to ``backend``.

    ``waiting(session)``: number of messages that the session has not fetched.
    """

    async def compare(visitor: gr.Request, *values: Any) -> AsyncIterator[dict]:
        session = visitor.session_hash or ""
        try:
            request = read_request(dict(zip(OFFERED, values)))
            job = partial(stream_of, partial(backend.compare, request))
            with visits.present(job, session, "api", address_of(visitor)) as stream:
                async for event in _read(stream, partial(waiting, session)):
                    yield event
        except UserError as error:
            yield {"run": "", "seq": 0, "kind": "failed", "data": {"message": str(error)}}

    with_parameters(compare, map(argument, OFFERED.values()))
    return compare


def argument(setting: Setting) -> Parameter:
    """The argument of the endpoint for ``setting``, from whose type Gradio makes a form and a schema."""
    types: dict[str, Any] = {"whole": int, "number": float, "flag": bool, "list": list[str]}
    kind = Literal[tuple(setting.choices)] if setting.choices else types.get(setting.kind, str)  # type: ignore[valid-type]
    default = setting.default if setting.kind == "list" else setting.written(setting.default)
    default = Parameter.empty if setting.name == "prompt" else default
    return Parameter(setting.name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)


async def _read(stream: EventStream[Event], waiting: Callable[[], int]) -> AsyncIterator[dict[str, Any]]:
    """The events of ``stream`` for programs, merged and numbered, until none was fetched for longer than GRACE_S.

    Gradio continues an event whose caller has gone away or never asked for the results, and keeps all of it.
    ``waiting()``: number of messages that the caller has not fetched.
    """
    seq, unread, fetched = 0, 0, time.monotonic()
    async for _, _, batch in batches(stream):
        for event in batch:
            yield {"run": stream.run, "seq": seq, **keyed_items(event)}
            seq += 1
        before, unread = unread, waiting()
        if unread <= before:
            fetched = time.monotonic()
        elif not (batch and batch[-1]["kind"] in LAST_KINDS) and time.monotonic() - fetched > GRACE_S:
            yield {"run": stream.run, "seq": seq, "kind": "failed", "data": {"message": UNREAD}}
            return
