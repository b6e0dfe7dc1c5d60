"""The Learn tab's assets: one framework-free script and one stylesheet, like the player's.

The dashboard and exported lessons contain the same two texts. The script is written in sections, ``js/*.js``, which
share one scope; they are only concatenated, with no build step.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
PLAYER = HERE.parent / "player" / "js"
SHARED = ("words",)  # sections of the player's script that this one includes, too
SECTIONS = (
    "replay",
    "policies",
    "adaptive",
    "theory",
    "expression",
    "dom",
    "lanes",
    "sentences",
    "facts",
    "charts",
    "steps",
    "questions",
    "lessons",
    "play",
    "whatif",
    "words",
    "learn",
    "exports",
)


@cache
def learn_js() -> str:
    """The script: its sections, concatenated so that each follows those that it uses."""
    paths = [PLAYER / f"{name}.js" for name in SHARED] + [HERE / "js" / f"{name}.js" for name in SECTIONS]
    sections = [path.read_text(encoding="utf-8") for path in paths]
    return '(function () {\n"use strict";\n' + "\n".join(sections) + "\n})();\n"


@cache
def learn_css() -> str:
    return (HERE / "learn.css").read_text(encoding="utf-8")
