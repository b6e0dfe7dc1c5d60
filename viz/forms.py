"""What the tabs share: their static HTML, Run and Stop with the job between them, and the browser's memory of forms.

Stop responds immediately, even if the work ends a bit later.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import gradio as gr
from gradio.components import Component

from decoding.backends.stream import EventStream
from decoding.records.events import Event

from .session import Visits, address_of

QUEUED: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None, "api_visibility": "private"}
"""The options of jobs: no overlay, no waiting for others' events, not in the API."""
QUIET: dict[str, Any] = {**QUEUED, "queue": False}
"""Those of the page's own quick events. Where one of them ends in the queue while a job joins it, Gradio's client
closes the stream of events of both, and the job's first news are lost.
"""
STOP: dict[str, Any] = {"value": "Stop", "interactive": True}
"""The button before it is pressed."""
IN_BROWSER: dict[str, Any] = {"fn": None, "api_visibility": "private"}
"""Those of events that run in the browser alone, as ``js``."""


def static_html(template: str, script: str | None = None, value: str = "", **options: Any) -> gr.HTML:
    """HTML that never contains a user's or a model's text: ``script``, a call of one of the page's functions in the
    browser, fills it in. (Not a subclass of gr.HTML: Gradio writes a .pyi file for the module of every subclass.)
    """
    call = script and f"window.SpeculoscopePage.{script};"
    return gr.HTML(value, html_template=template, js_on_load=call, apply_default_css=False, **options)


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
    start: Callable[..., EventStream[Event]],
    visits: Visits,
    fields: Sequence[Component],
    view: gr.HTML,
    buttons: tuple[gr.Button, gr.Button],
    *triggers: Any,
) -> None:
    """Run, or another of ``triggers``, streams a job's deltas to ``view`` until it ends or Stop is pressed.

    ``start(*values)`` begins the job for the values of ``fields``; it may raise UserError. A visitor has one job of a
    ``task`` at a time: once there is a result to look at, another Run ends it and takes its place.
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
            yield gr.skip(), gr.update(visible=False), gr.update(visible=True, **STOP)
            begin = partial(start, *values)
            async for delta, has_result in visits.deltas(begin, session, task, address_of(visitor)):
                turn.has_result = has_result
                yield delta, gr.update(visible=has_result), gr.update(visible=True)  # again: a page may miss some
            if newest.get(session) is turn:
                yield gr.skip(), gr.update(visible=True), gr.update(visible=False, **STOP)
        finally:
            turn.over.set()
            if newest.get(session) is turn:
                del newest[session]

    def cancel(visitor: gr.Request) -> dict[str, Any]:
        visits.stop(visitor.session_hash or "", task)
        return gr.update(value="Stopping", interactive=False)  # the current pass or process start still finishes

    outputs = [view, run, stop]
    gr.on([run.click, *triggers], work, list(fields), outputs, concurrency_id="race", trigger_mode="multiple", **QUEUED)
    stop.click(cancel, None, stop, queue=False, show_progress="hidden", api_visibility="private")


# -- what the browser remembers of a form, so that the form is filled in again after a reload


_MERGE = """(restored, ...now) => {
  const first = %s, skip = {__type__: "update"}, same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const changed = now.map((value, i) => !same(value, first[i]));
  return restored.map((value, i) => (i < now.length ? changed[i] : changed.includes(true)) ? skip : value);
}"""


def wire_memory(
    page: gr.Blocks,
    fields: dict[str, Component],
    view: gr.HTML,
    restore: Callable[..., list],
    outputs: Sequence[Component],
) -> None:
    """With each change of a field the browser stores all ``fields`` by name; when ``page`` loads, ``restore`` gets what
    is stored: of a page that was reloaded its own, not what was changed in another tab of the browser.

    ``restore`` returns the values of ``outputs``, of which ``fields`` are the first. What it gets is untrusted: {} at
    the first visit, else any JSON. A field that the visitor has changed meanwhile stays as it is. The scripts of
    ``view`` are told when the form is filled in.
    """
    ours, names = json.dumps(view.elem_id), json.dumps(list(fields))
    by_name = f"Object.fromEntries({names}.map((name, i) => [name, values[i]]))"
    gr.on(
        [field.change for field in fields.values()],
        inputs=list(fields.values()),
        js=f"(...values) => {{ window.SpeculoscopePage.keepForm({ours}, {by_name}); }}",
        **IN_BROWSER,
    )
    # The answer may come when the visitor has begun to fill in the form, so it does not go into the form directly.
    kept, restored = gr.JSON(visible=False), gr.JSON(visible=False)
    read = page.load(restore, kept, restored, js=f"() => window.SpeculoscopePage.keptForm({ours})", **QUIET)
    filled_in = read.success(
        inputs=[restored, *fields.values()],
        outputs=list(outputs),
        js=_MERGE % json.dumps([field.value for field in fields.values()]),
        **IN_BROWSER,
    )
    filled_in.success(js=f"() => {{ window.SpeculoscopePage.filledIn({ours}); }}", **IN_BROWSER)
