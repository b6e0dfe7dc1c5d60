"""The Learn tab and its own requests to the server: lessons and files. Answers are cheap; input is taken as hostile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import gradio as gr

from decoding.errors import UserError

from ..export import export_lesson
from ..server_functions import Answer, Query, answered, answers
from ..session import Visits
from ..store import RunStore
from .lessons import lesson_faults, read_lesson, shipped_lessons
from .roles import find_roles, readable_runs, wanted_by

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
    reading = threading.Lock()  # reading all recordings takes a second, so it happens once, at the first request

    @cache
    def index() -> dict[str, Any]:
        runs = [*readable_runs(store.recorded), *readable_runs(store.of_lessons)]
        return {
            "recordings": [{"id": info.id, "title": info.title} for info in store.recordings()],
            "roles": find_roles(runs, wanted_by(shipped_lessons())),
            "lessons": list(shipped_lessons()),
            "faults": list(lesson_faults()),
        }

    @answered
    def learn_index(query: Query) -> Answer:
        with reading:
            return index()

    @answered
    def learn_lesson(query: Query) -> Answer:
        return {"lesson": read_lesson(query.get("text"))}

    @answered
    def learn_export(query: Query) -> Answer:
        lesson = read_lesson(query.get("lesson"))
        if query.get("run") is None:
            raise UserError("Choose a run first: a saved lesson contains its runs.")
        roles = _roles(lesson, query.get("roles"))
        payload = store.payload("learn", query["run"])
        if len({query["run"], *roles.values()}) > MAX_RUNS:
            raise UserError(f"This lesson shows more than {MAX_RUNS} runs, the most that one file holds.")
        others = [store.payload("learn", one) for one in dict.fromkeys(roles.values()) if one != query["run"]]
        return {"name": f"speculoscope-{lesson['id']}.html", "text": export_lesson(lesson, payload, others, roles)}

    return [learn_index, learn_lesson, learn_export]


def _roles(lesson: dict[str, Any], asked: Any) -> dict[str, str]:
    """The runs of ``asked``, {what the lesson calls the run: id}, that it has steps for."""
    wanted = {lesson.get("recording"), *(step.get("recording") for step in lesson["steps"])}
    given = asked.items() if isinstance(asked, dict) else ()
    return {name: run for name, run in given if name in wanted and isinstance(run, str)}
