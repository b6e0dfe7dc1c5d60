"""Run and Stop, and the job between them. Stop responds immediately, even if the work ends a bit later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import gradio as gr
from gradio.components import Component

from decoding.backends.stream import EventStream
from decoding.errors import UserError
from decoding.records.events import Event

from .session import Visits, address_of, delta_of

QUIET: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None, "api_visibility": "private"}
"""The options of the page's own events: no overlay, no waiting for others' events, not in the API."""


def make_buttons(text: str, width: int, **named: str) -> tuple[gr.Button, gr.Button]:
    """The start button labelled ``text``, and the hidden Stop. ``named``: elem_ids as run=, stop=."""
    run = gr.Button(text, variant="primary", scale=0, min_width=width, elem_id=named.get("run"))
    stop = gr.Button("Stop", variant="stop", scale=0, min_width=width, visible=False, elem_id=named.get("stop"))
    return run, stop


class _Turn:
    """A job that Run began."""

    def __init__(self) -> None:
        self.has_result = False
        self.over = asyncio.Event()


def wire_job(
    task: str,
    start_of: Callable[..., Callable[[], EventStream[Event]]],
    visits: Visits,
    fields: Sequence[Component],
    view: gr.HTML,
    buttons: tuple[gr.Button, gr.Button],
    *triggers: Any,
) -> None:
    """Run, or another of ``triggers``, streams a job's deltas to ``view`` until it ends or Stop is pressed.

    ``start_of(*values)`` gives what starts the job for the values of ``fields``; it may raise UserError. A visitor has
    one job of a ``task`` at a time: once there is a result to look at, another Run ends it and takes its place.
    """
    run, stop = buttons
    newest: dict[str, _Turn] = {}  # by visitor

    async def work(visitor: gr.Request, *values: Any) -> AsyncIterator[tuple]:
        session = visitor.session_hash or ""
        before, turn = newest.get(session), _Turn()
        if before and not before.has_result:  # pressed twice
            yield gr.skip(), gr.skip(), gr.skip()
            return
        newest[session] = turn
        try:
            if before:
                visits.stop(session, task)
                await before.over.wait()
            yield gr.skip(), gr.update(visible=False), gr.update(visible=True)
            try:
                start = start_of(*values)
            except UserError as error:
                yield delta_of("failed", message=str(error)), gr.skip(), gr.skip()
            else:
                async for delta, has_result in visits.deltas(start, session, task, address_of(visitor)):
                    turn.has_result = has_result
                    yield delta, gr.update(visible=has_result), gr.update(visible=True)  # again: a page may miss some
            if newest.get(session) is turn:
                yield gr.skip(), gr.update(visible=True), gr.update(visible=False, value="Stop", interactive=True)
        finally:
            turn.over.set()
            if newest.get(session) is turn:
                del newest[session]

    def cancel(visitor: gr.Request) -> dict[str, Any]:
        visits.stop(visitor.session_hash or "", task)
        return gr.update(value="Stopping", interactive=False)  # the current pass or process start still finishes

    outputs = [view, run, stop]
    gr.on([run.click, *triggers], work, list(fields), outputs, concurrency_id="race", trigger_mode="multiple", **QUIET)
    stop.click(cancel, None, stop, queue=False, show_progress="hidden", api_visibility="private")
