"""What is made of a run for elsewhere: HTML files that need neither a server nor a network, and a table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from html import escape
from typing import Any

from decoding.records.proposal import depths_of
from decoding.records.trace import Run

from .player.details import token_details
from .player.payload import Origin, run_payload
from .scripts import TAGLINE, learn_css, learn_js, player_css, player_js

MAX_DETAILED_TOKENS = 6000  # above it the file leaves out the tokens' alternatives
OF_TOKEN = (
    "fate",
    "p_draft",
    "p_target",
    "entropy",
    "score",
    "threshold",
    "accept_probability",
    "draw",
    "draft_choice",
    "target_choice",
)
COLUMNS = ("lane", "iteration", "index", "position", "id", "text", *OF_TOKEN, "sl", "accepted", "holds")


def export_html(run: Run, *, origin: Origin = "recorded") -> str:
    """The run's page, one file: the player, the details of every token, and how the run was made."""
    payload = run_payload(run, origin=origin)
    return document(
        title=f"Speculoscope: {payload['sentence']}",
        css=player_css(),
        js=player_js(),
        body='<div id="player"></div>\n<section id="appendix" class="speculoscope speculoscope-appendix"></section>',
        data={"payload": payload, "details": _all_details(run)},
        start=_PLAYER,
    )


def _all_details(run: Run) -> list[list[list[dict[str, Any]]]]:
    """token_details of every token, by lane, iteration and index."""
    everything = [
        [
            [token_details(run, lane, number, index) for index in range(len(iteration.all_tokens))]
            for number, iteration in enumerate(trace.iterations)
        ]
        for lane, trace in enumerate(run.lanes)
    ]
    tokens = [token for lane in everything for iteration in lane for token in iteration]
    if len(tokens) > MAX_DETAILED_TOKENS:
        for details in tokens:
            details["draft_top"] = details["target_top"] = []
    return everything


def export_lesson(lesson: dict[str, Any], payload: dict[str, Any], others: Sequence[dict[str, Any]] = ()) -> str:
    """The lesson's page, one file. ``payload``: its first run; ``others``: the further recordings that it names."""
    return document(
        title=f"Speculoscope: {lesson['title']}",
        css=player_css() + learn_css(),
        js=learn_js(),
        body='<div id="learn"></div>',
        data={"index": {"recordings": [], "lessons": [lesson]}, "payloads": [payload, *others]},
        start=_LESSON,
    )


def run_csv(run: Run) -> str:
    """CSV of ``run`` with a header row.

    Texts are JSON strings, so that white space is visible and no cell starts a formula. ``index`` counts an iteration's
    tokens, the emitted one last; ``position`` is the position in the text (for a token that was not accepted: the
    position it was drafted for).
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for trace in run.lanes:
        for number, iteration in enumerate(trace.iterations):
            drafted, accepted = iteration.n_drafted, iteration.n_accepted  # each counts all guesses of the iteration
            places = [*(depths_of(iteration.parents) if iteration.parents else range(drafted)), accepted]
            for index, token in enumerate(iteration.all_tokens):
                known = run.vocab.get(token.id)
                where = (_safe(trace.lane), number, index, iteration.start + places[index])
                what = (token.id, json.dumps(known.text if known else ""), *(getattr(token, name) for name in OF_TOKEN))
                writer.writerow([*where, *what, drafted, accepted, iteration.holds])
    return out.getvalue()


def _safe(text: str) -> str:
    """A cell that no spreadsheet reads as a formula (a lane's name in an opened file may be anything)."""
    return f"'{text}" if text[:1] in "=+-@\t\r" else text


# -- the file -----------------------------------------------------------------------------------------------


def document(title: str, css: str, js: str, body: str, data: dict[str, Any], start: str) -> str:
    """The file. Data occurs only inside JSON blocks that no character can end.

    Args:
        css, js: styles and scripts. body: HTML below the heading, its texts escaped.
        data: blocks of JSON by element id. start: the script that reads them with ``read(id)`` and begins.
    """
    blocks = "\n".join(
        f'<script type="application/json" id="{name}">{json_for_script(block)}</script>' for name, block in data.items()
    )
    return _PAGE.format(title=escape(title), tagline=TAGLINE, css=css, js=js, body=body, data=blocks, start=start)


def json_for_script(data: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can be read as a tag or a line end."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>
{css}
</style>
</head>
<body class="speculoscope-page">
<main>
<header class="speculoscope-head"><h1>Speculoscope</h1>
<p>{tagline}</p>
</header>
{body}
</main>
{data}
<script>
{js}
</script>
<script>
(function () {{
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const follow = () => document.body.classList.toggle("dark", dark.matches);
  dark.addEventListener("change", follow);
  follow();
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
{start}
}})();
</script>
</body>
</html>
"""

_PLAYER = """\
  const details = read("details");
  const player = Speculoscope.mount(document.getElementById("player"), {
    details: async (lane, iteration, index) => details[lane][iteration][index],
  });
  const payload = read("payload");
  player.load(payload);
  Speculoscope.appendix(document.getElementById("appendix"), payload);
  window.player = player;"""

_LESSON = """\
  const index = read("index"), runs = read("payloads"), payloads = Object.fromEntries(runs.map((run) => [run.id, run]));
  const learn = SpeculoscopeLearn.mount(document.getElementById("learn"), { index, payloads, exported: true });
  learn.openRun(runs[0]);
  learn.show("lessons");
  learn.places.lessons.open(index.lessons[0]);
  window.learn = learn;"""
