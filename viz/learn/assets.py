"""The Learn place as it ships: one framework-free script and one stylesheet, as the player's.

The dashboard and exported lessons hold the same two texts. The script is written in sections, ``js/*.js``, which share
one scope; joining them is all that is done to them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
PLAYER = HERE.parent / "player" / "js"
SHARED = ("words",)  # sections of the player that this script holds too
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
    """The script: its sections, joined in the order in which they build on each other."""
    paths = [PLAYER / f"{name}.js" for name in SHARED] + [HERE / "js" / f"{name}.js" for name in SECTIONS]
    sections = [path.read_text(encoding="utf-8") for path in paths]
    return '(function () {\n"use strict";\n' + "\n".join(sections) + "\n})();\n"


@cache
def learn_css() -> str:
    return (HERE / "learn.css").read_text(encoding="utf-8")
