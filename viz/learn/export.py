"""A lesson and its runs as one self-contained HTML file: the same script and styles, no server, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.assets import learn_css, learn_js, player_css
from ..core.document import document


def export_lesson(
    lesson: dict[str, Any],
    payload: dict[str, Any],
    others: Sequence[dict[str, Any]] = (),
    roles: Mapping[str, str] | None = None,
) -> str:
    """The page. ``payload``: its first run; ``others``: those of further steps; ``roles``: {name in the lesson: id}."""
    return document(
        title=f"Speculoscope: {lesson['title']}",
        css=player_css() + learn_css(),
        js=learn_js(),
        body='<div id="learn"></div>',
        data={
            "index": {"recordings": [], "roles": dict(roles or {}), "lessons": [lesson]},
            "payloads": [payload, *others],
        },
        start=_START,
    )


_START = """\
  const index = read("index"), runs = read("payloads"), payloads = Object.fromEntries(runs.map((run) => [run.id, run]));
  const learn = SpeculoscopeLearn.mount(document.getElementById("learn"), { index, payloads, exported: true });
  learn.openRun(runs[0]);
  learn.show("lessons");
  learn.places.lessons.open(index.lessons[0]);
  window.learn = learn;"""
