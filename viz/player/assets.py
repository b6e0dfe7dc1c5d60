"""The shipped player: one framework-free script and one stylesheet, ``player_js()`` and ``player_css()``.

The dashboard and the exported HTML files contain the same two texts unchanged. The script is written in sections,
``js/*.js``, which share one scope; they are only concatenated.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
SECTIONS = (
    "words",
    "helpers",
    "glossary",
    "lanes",
    "text",
    "strip",
    "popup",
    "panels",
    "player",
    "shell",
    "lookahead",
    "simulation",
    "pointing",
    "roving",
    "live",
)
OFFERED = "mount: (root, options) => new Player(root, options), termed, explainTerms"


@cache
def player_js() -> str:
    """The script: its sections, joined in the order of their dependencies."""
    sections = [(HERE / "js" / f"{name}.js").read_text(encoding="utf-8") for name in SECTIONS]
    body = "\n".join([*sections, f"global.Speculoscope = {{ {OFFERED} }};"])
    return f'(function () {{\n"use strict";\n{body}\n}})();\n'


@cache
def player_css() -> str:
    return (HERE / "player.css").read_text(encoding="utf-8")


def light_colours() -> dict[str, str]:
    """The colour variables of the light theme by name, for documents without a theme."""
    block = re.search(r"\{([^{}]*--sd-bg:[^{}]*)\}", player_css())
    return dict(re.findall(r"(--sd-[\w-]+):\s*(#[0-9a-f]{6})", block.group(1) if block else ""))
