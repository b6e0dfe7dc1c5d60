"""A lesson and its run as one self-contained HTML file: the same script and styles, no server, no network."""

from __future__ import annotations

from typing import Any

from ..player.assets import player_css
from ..player.document import document
from .assets import learn_css, learn_js


def export_lesson(lesson: dict[str, Any], payload: dict[str, Any]) -> str:
    """The page."""
    return document(
        title=f"Speculoscope: {lesson['title']}",
        css=player_css() + learn_css(),
        js=learn_js(),
        body='<div id="learn"></div>',
        data={"index": {"recordings": [], "roles": {}, "lessons": [lesson]}, "payload": payload},
        start=_START,
    )


_START = """\
  const index = read("index");
  const learn = SpeculoscopeLearn.mount(document.getElementById("learn"), { index, exported: true });
  learn.openRun(read("payload"));
  learn.show("lessons");
  learn.places.lessons.open(index.lessons[0]);
  window.learn = learn;"""
