"""The shipped scripts and stylesheets of the player and the Learn tab.

The dashboard and the exported HTML files contain the same texts unchanged.
"""

from __future__ import annotations

import re
from typing import Any

from .bundle import script, styles


def player_js() -> str:
    """The script, which defines ``Speculoscope``."""
    return script("player/js/main.js", "Speculoscope")


def player_css() -> str:
    """The stylesheet, with the parts that the Learn tab and the page share."""
    return styles("core/base.css", "player/player.css")


def learn_js() -> str:
    """The script, which defines ``SpeculoscopeLearn``."""
    return script("learn/js/main.js", "SpeculoscopeLearn")


def learn_css() -> str:
    """What the Learn tab adds to :func:`player_css`."""
    return styles("learn/learn.css")


def light_colours() -> dict[str, str]:
    """The colour variables of the light theme by name."""
    block = re.search(r"\{([^{}]*--sd-bg:[^{}]*)\}", player_css())
    return dict(re.findall(r"(--sd-[\w-]+):\s*(#[0-9a-f]{6})", block.group(1) if block else ""))


def on_paper(value: Any) -> Any:
    """A figure as plain data with each "var(--x)" replaced by its light colour, for pages without themes."""
    colours = {f"var({name})": colour for name, colour in light_colours().items()}

    def inked(one: Any) -> Any:
        if isinstance(one, str):
            return colours.get(one, one)
        if isinstance(one, dict):
            return {key: inked(part) for key, part in one.items()}
        return [inked(part) for part in one] if isinstance(one, list | tuple) else one

    return inked(value)
