"""What the browser remembers of a form, so that the form is filled in again after a reload."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import gradio as gr
from gradio.components import Component

from .buttons import QUIET

_MERGE = """(restored, ...now) => {
  const first = %s, skip = {__type__: "update"}, same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const changed = now.map((value, i) => !same(value, first[i]));
  return restored.map((value, i) => (i < now.length ? changed[i] : changed.includes(true)) ? skip : value);
}"""


def form_memory(name: str) -> gr.BrowserState:
    """The browser's memory of a form. It must be placed outside of the tabs: inside a tab that was not opened yet,
    Gradio does not read it.
    """
    return gr.BrowserState({}, storage_key=f"speculoscope-{name}", secret="not-a-secret")


def wire_memory(
    page: gr.Blocks,
    memory: gr.BrowserState,
    fields: dict[str, Component],
    restore: Callable[..., list],
    outputs: Sequence[Component],
) -> None:
    """Each change of a field stores all ``fields`` by name; when ``page`` loads, ``restore`` gets what is stored.

    ``restore`` returns the values of ``outputs``, of which ``fields`` are the first. What it gets is untrusted: {} at
    the first visit, else any JSON. A field that the visitor has changed meanwhile stays as it is.
    """
    gr.on(
        [field.change for field in fields.values()],
        fn=None,
        inputs=list(fields.values()),
        outputs=memory,
        js=f"(...values) => Object.fromEntries({json.dumps(list(fields))}.map((name, i) => [name, values[i]]))",
        api_visibility="private",
    )
    # On the server: a handler that runs in the browser alone is called before the browser's memory has been read. Its
    # answer may come when the visitor has begun to fill in the form, so it does not go into the form directly.
    restored = gr.JSON(visible=False)
    loaded = page.load(restore, memory, restored, **QUIET)
    loaded.success(
        fn=None,
        inputs=[restored, *fields.values()],
        outputs=list(outputs),
        js=_MERGE % json.dumps([field.value for field in fields.values()]),
        api_visibility="private",
    )
