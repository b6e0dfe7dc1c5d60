"""The shipped player: one framework-free script and one stylesheet, ``player_js()`` and ``player_css()``.

The dashboard and the exported HTML files contain the same two texts unchanged.
"""

from __future__ import annotations

import re

from ..core.bundle import script, styles


def player_js() -> str:
    """The script, which defines ``Speculoscope``."""
    return script("player/js/main.js", "Speculoscope")


def player_css() -> str:
    return styles("player/player.css")


def light_colours() -> dict[str, str]:
    """The colour variables of the light theme by name, for documents without a theme."""
    block = re.search(r"\{([^{}]*--sd-bg:[^{}]*)\}", player_css())
    return dict(re.findall(r"(--sd-[\w-]+):\s*(#[0-9a-f]{6})", block.group(1) if block else ""))
