"""The Learn tab: one static element that the tab's script fills when it is first opened."""

from __future__ import annotations

import gradio as gr

from ..store import RunStore
from .desk import learn_answers

TEMPLATE = '<div class="sp-learn" aria-busy="true"><p class="speculoscope sp-note">Opening the lessons…</p></div>'


def build_learn_tab(store: RunStore) -> None:
    """Add the tab's component to the current Gradio context."""
    gr.HTML(
        "",
        elem_id="learn",
        html_template=TEMPLATE,
        js_on_load="window.SpeculoscopePage.learn(element, server);",
        apply_default_css=False,
        server_functions=learn_answers(store),
    )
