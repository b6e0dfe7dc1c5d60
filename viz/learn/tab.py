"""The Learn tab and its own requests to the server: lessons and files. Answers are cheap; input is taken as hostile."""

from __future__ import annotations

from collections.abc import Callable

import gradio as gr

from decoding.errors import UserError

from ..export import export_lesson
from ..server_functions import Answer, Query, answered, answers
from ..session import Visits
from ..store import RunStore
from .lessons import lesson_faults, read_lesson, recordings_of, shipped_lessons

MAX_RUNS = 4  # of one saved lesson
TEMPLATE = '<div class="sp-learn" aria-busy="true"><p class="speculoscope sp-note">Opening the lessons…</p></div>'


def build_learn_tab(store: RunStore, visits: Visits) -> None:
    """Adds to the current Gradio context one static element, which the tab's script fills when it is first opened."""
    gr.HTML(
        "",
        elem_id="learn",
        html_template=TEMPLATE,
        js_on_load="window.SpeculoscopePage.learn(element, server);",
        apply_default_css=False,
        server_functions=[*answers(store, visits), *learn_answers(store)],
    )


def learn_answers(store: RunStore) -> list[Callable[[Query], Answer]]:
    """The functions that the Learn tab's JavaScript may call by name, besides those that it shares with the race."""

    @answered
    def learn_index(query: Query) -> Answer:
        return {
            "recordings": [{"id": info.id, "title": info.title} for info in store.recordings()],
            "lessons": list(shipped_lessons()),
            "faults": list(lesson_faults()),
        }

    @answered
    def learn_lesson(query: Query) -> Answer:
        return {"lesson": read_lesson(query.get("text"))}

    @answered
    def learn_export(query: Query) -> Answer:
        lesson = read_lesson(query.get("lesson"))
        if query.get("run") is None:
            raise UserError("Choose a run first: a saved lesson contains its runs.")
        payload = store.payload("learn", query["run"])
        named = recordings_of(lesson)
        others = [info.id for info in store.recordings() if info.id in named and info.id != query["run"]]
        if len(others) >= MAX_RUNS:
            raise UserError(f"This lesson shows more than {MAX_RUNS} runs, the most that one file holds.")
        text = export_lesson(lesson, payload, [store.payload("learn", one) for one in others])
        return {"name": f"speculoscope-{lesson['id']}.html", "text": text}

    return [learn_index, learn_lesson, learn_export]
