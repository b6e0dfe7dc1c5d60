"""A self-contained HTML file: styles, scripts and data inside, no server, no network."""

from __future__ import annotations

import json
from html import escape
from typing import Any


def document(title: str, css: str, js: str, body: str, data: dict[str, Any], start: str) -> str:
    """The file. Data occurs only inside JSON blocks that no character can end.

    Args:
        css, js: styles and scripts. body: HTML below the heading, its texts escaped.
        data: blocks of JSON by element id. start: the script that reads them with ``read(id)`` and begins.
    """
    blocks = [
        f'<script type="application/json" id="{name}">{json_for_script(block)}</script>' for name, block in data.items()
    ]
    return _PAGE.format(title=escape(title), css=css, js=js, body=body, data="\n".join(blocks), start=start)


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
<p>A small model, the draft, guesses ahead; a big one, the target, checks all guesses in one pass.
Same text, sooner.</p>
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
