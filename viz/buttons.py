"""The Run and Stop buttons, one of which is visible. Stop responds immediately, even if the work ends a bit later."""

from __future__ import annotations

from typing import Any

import gradio as gr


def make_buttons(text: str, width: int, **named: str) -> tuple[gr.Button, gr.Button]:
    """The start button labelled ``text``, and the hidden Stop. ``named``: elem_ids as run=, stop=."""
    run = gr.Button(text, variant="primary", scale=0, min_width=width, elem_id=named.get("run"))
    stop = gr.Button("Stop", variant="stop", scale=0, min_width=width, visible=False, elem_id=named.get("stop"))
    return run, stop


def running() -> tuple[dict[str, Any], dict[str, Any]]:
    """Updates of (run, stop) when the work begins."""
    return gr.update(visible=False), gr.update(visible=True, value="Stop", interactive=True)


def stopping() -> dict[str, Any]:
    """Update of stop after it was pressed: the current pass or process start still finishes."""
    return gr.update(value="Stopping", interactive=False)


def idle() -> tuple[dict[str, Any], dict[str, Any]]:
    """Updates of (run, stop) when the work is over."""
    return gr.update(visible=True), gr.update(visible=False, value="Stop", interactive=True)
