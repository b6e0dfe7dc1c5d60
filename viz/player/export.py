"""Exports a run as one self-contained HTML file with the same player, without a server or network."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from decoding.records.trace import Run

from .appendix import appendix
from .assets import player_css, player_js
from .details import token_details
from .payload import Origin, player_payload

MAX_DETAILED_TOKENS = 6000  # above it the file leaves out the tokens' alternatives


def export_html(run: Run, *, origin: Origin = "recorded") -> str:
    """The page. Texts occur only inside a JSON block that no character can end."""
    payload = player_payload(run, origin=origin)
    title = f"Speculoscope: {payload['sentence']}"
    return _PAGE.format(
        title=escape(title),
        policy=_CONTENT_POLICY,
        css=player_css(),
        js=player_js(),
        payload=json_for_script(payload),
        details=json_for_script(_all_details(run)),
        appendix=appendix(run),
    )


def json_for_script(data: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can be read as a tag or a line end."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _all_details(run: Run) -> list[list[list[dict[str, Any]]]]:
    """token_details of every token, by lane, iteration and index."""
    counts = [[it.n_drafted + (it.emitted is not None) for it in trace.iterations] for trace in run.lanes]
    everything = [
        [[token_details(run, lane, i, index) for index in range(n)] for i, n in enumerate(per_iteration)]
        for lane, per_iteration in enumerate(counts)
    ]
    if sum(map(sum, counts)) > MAX_DETAILED_TOKENS:
        for details in (one for lane in everything for iteration in lane for one in iteration):
            details["draft_top"] = details["target_top"] = []
    return everything


_CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
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
<p>A small model, the draft, guesses ahead; a big one, the target, checks all guesses in one pass.
Same text, sooner.</p>
</header>
<div id="player"></div>
<section class="speculoscope speculoscope-appendix">{appendix}</section>
</main>
<script type="application/json" id="payload">{payload}</script>
<script type="application/json" id="details">{details}</script>
<script>
{js}
</script>
<script>
(function () {{
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const details = read("details");
  const player = Speculoscope.mount(document.getElementById("player"), {{
    globalKeys: true,
    details: async (lane, iteration, index) => details[lane][iteration][index],
  }});
  player.load(read("payload"));
  window.player = player;
}})();
</script>
</body>
</html>
"""
