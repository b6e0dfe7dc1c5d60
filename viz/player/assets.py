"""The player's script and style, as they are put into a page."""

from __future__ import annotations

from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
JS_PARTS = (
    "helpers", "lanes", "text", "strip", "popup", "panels", "player", "shell", "simulation", "pointing", "live",
)  # fmt: skip


@cache
def player_js() -> str:
    """The player as one script: its parts, joined in the order in which they build on each other."""
    parts = [(HERE / "js" / f"{name}.js").read_text(encoding="utf-8") for name in JS_PARTS]
    body = "\n".join([*parts, "global.Speculoscope = { mount: (root, options) => new Player(root, options) };"])
    return f'(function () {{\n"use strict";\n{body}\n}})();\n'


@cache
def player_css() -> str:
    return (HERE / "player.css").read_text(encoding="utf-8")
