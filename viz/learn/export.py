"""A lesson and its run as one self-contained HTML file: the same script and styles, no server, no network."""

from __future__ import annotations

from html import escape
from typing import Any

from ..player.assets import player_css
from ..player.export import json_for_script
from .assets import learn_css, learn_js


def export_lesson(lesson: dict[str, Any], payload: dict[str, Any]) -> str:
    """The page. Lesson and run texts are only in JSON blocks, encoded so that no text can end its block."""
    index = {"recordings": [], "roles": {}, "lessons": [lesson]}
    return _PAGE.format(
        title=escape(f"Speculoscope: {lesson['title']}"),
        policy="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'",
        css=player_css() + learn_css(),
        js=learn_js(),
        index=json_for_script(index),
        payload=json_for_script(payload),
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>
{css}
</style>
</head>
<body class="speculoscope-page">
<main>
<header class="speculoscope-head"><h1>Speculoscope</h1>
<p>A small model, the draft, guesses ahead; a big one, the target, checks all guesses in one pass.</p>
</header>
<div id="learn"></div>
</main>
<script type="application/json" id="index">{index}</script>
<script type="application/json" id="payload">{payload}</script>
<script>
{js}
</script>
<script>
(function () {{
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const index = read("index");
  const learn = SpeculoscopeLearn.mount(document.getElementById("learn"), {{ index, exported: true }});
  learn.openRun(read("payload"));
  learn.show("lessons");
  learn.places.lessons.open(index.lessons[0]);
  window.learn = learn;
}})();
</script>
</body>
</html>
"""
