"""The Learn tab and its requests to the server: runs, lessons, files. Answers are cheap; input is taken as hostile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

from decoding.backends.recorded import RecordedBackend
from decoding.errors import UserError
from decoding.records.trace import Run

from ..export import export_lesson
from ..player.payload import run_payload
from ..server_functions import Answer, Query, answered, while_there
from ..store import RunStore
from .lessons import LESSONS, lesson_faults, read_lesson, shipped_lessons
from .roles import find_roles, readable_runs, wanted_by

OWN_RECORDINGS = LESSONS / "recordings"  # runs that lessons need and the showcase does not contain

MAX_RUNS = 4  # of one saved lesson
TEMPLATE = '<div class="sp-learn" aria-busy="true"><p class="speculoscope sp-note">Opening the lessons…</p></div>'


def build_learn_tab(store: RunStore) -> None:
    """Adds to the current Gradio context one static element, which the tab's script fills when it is first opened."""
    gr.HTML(
        "",
        elem_id="learn",
        html_template=TEMPLATE,
        js_on_load="window.SpeculoscopePage.learn(element, server);",
        apply_default_css=False,
        server_functions=learn_answers(store),
    )


class LearnRuns:
    """Recorded runs of the showcase and of the lessons, and visitors' runs, by id."""

    def __init__(self, store: RunStore, own: Path = OWN_RECORDINGS) -> None:
        self.store = store
        self.own = RecordedBackend(own)

    def recordings(self) -> list[dict[str, str]]:
        infos = [*self.store.recorded.recordings(), *self.own.recordings()]
        return [{"id": info.id, "title": info.title, "shows": info.shows} for info in infos]

    def roles(self) -> dict[str, str]:
        """Kind of run -> recording."""
        runs = [*readable_runs(self.store.recorded), *readable_runs(self.own)]
        return find_roles(runs, wanted_by(shipped_lessons()))

    def run(self, identifier: Any) -> Run:
        if any(info.id == identifier for info in self.own.recordings()):
            return self.own.load(identifier)
        return self.store.get(identifier)

    def payload(self, identifier: Any) -> dict[str, Any]:
        """The page's data for a run."""
        title = next((one["title"] for one in self.recordings() if one["id"] == identifier), None)
        if title is None:
            return self.store.drawn("learn", identifier)
        return run_payload(self.run(identifier), title=title, origin="recorded", details=True)


def learn_answers(store: RunStore) -> list[Callable[[Query], Answer]]:
    """The functions that the Learn tab's JavaScript may call by name."""
    runs = LearnRuns(store)

    reading = threading.Lock()  # reading all recordings takes a second, so it happens once, at the first request

    @cache
    def index() -> dict[str, Any]:
        return {
            "recordings": runs.recordings(),
            "roles": runs.roles(),
            "lessons": list(shipped_lessons()),
            "faults": list(lesson_faults()),
        }

    @answered
    def learn_index(query: Query) -> Answer:
        with reading:
            return index()

    @answered
    def learn_run(query: Query) -> Answer:
        return {"payload": runs.payload(query.get("run"))}

    @answered
    def opened(query: Query, gone: threading.Event) -> Answer:
        return {"payload": store.open("learn", query.get("text"), gone)}

    async def learn_open(query: Query, visitor: gr.Request) -> Answer:
        return await while_there(visitor, store.sandbox.threads, lambda gone: opened(query, gone))

    @answered
    def learn_link(query: Query) -> Answer:
        return {"text": store.link(runs.run(query.get("run")))}

    @answered
    def learn_lesson(query: Query) -> Answer:
        return {"lesson": read_lesson(query.get("text"))}

    @answered
    def learn_export(query: Query) -> Answer:
        lesson = read_lesson(query.get("lesson"))
        if query.get("run") is None:
            raise UserError("Choose a run first: a saved lesson contains its runs.")
        roles = _roles(lesson, query.get("roles"))
        payload = runs.payload(query.get("run"))
        if len({query["run"], *roles.values()}) > MAX_RUNS:
            raise UserError(f"This lesson shows more than {MAX_RUNS} runs, the most that one file holds.")
        others = [runs.payload(one) for one in dict.fromkeys(roles.values()) if one != query.get("run")]
        return {"name": f"speculoscope-{lesson['id']}.html", "text": export_lesson(lesson, payload, others, roles)}

    return [learn_index, learn_run, learn_open, learn_link, learn_lesson, learn_export]


def _roles(lesson: dict[str, Any], asked: Any) -> dict[str, str]:
    """The runs of ``asked``, {what the lesson calls the run: id}, that it has steps for."""
    wanted = {lesson.get("recording"), *(step.get("recording") for step in lesson["steps"])}
    given = asked.items() if isinstance(asked, dict) else ()
    return {name: run for name, run in given if name in wanted and isinstance(run, str)}
