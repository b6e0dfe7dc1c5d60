"""What all Plotly figures share: the frame on the page, the layout, the colours."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
import plotly.io

from decoding.evaluation.results import Figure

from ..scripts import light_colours

INK, MUTED = "var(--sd-ink)", "var(--sd-mute)"  # resolved in the browser, so that both themes work
DOTTED = {"color": MUTED, "width": 1, "dash": "dot"}  # a line of reference, such as that of plain decoding
LAYOUT: dict[str, Any] = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"color": MUTED, "family": "system-ui, sans-serif", "size": 12},
    "margin": {"l": 52, "r": 12, "t": 34, "b": 44},
    "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom"},
    "hoverlabel": {
        "align": "left",
        "bgcolor": "var(--sd-card)",
        "bordercolor": "var(--sd-line)",
        "font": {"color": INK},
    },
}


@dataclass(slots=True)
class Drawing:
    """A figure on the page, in the layout that all share.

    ``follow``: the player's position can be marked in it. ``choice``: its name among alternative drawings, of which one
    is shown at a time; "" for drawings that are always shown.
    """

    name: str
    title: str
    sentence: str
    figure: go.Figure
    height: int  # px
    follow: bool = False
    choice: str = ""

    def to_dict(self) -> dict[str, Any]:
        figure = self.figure.to_plotly_json()  # no figure has a layout of its own for what LAYOUT has
        figure["layout"] |= {"height": self.height, **LAYOUT}
        about = {name: getattr(self, name) for name in ("name", "title", "sentence", "follow", "choice")}
        return {**about, "figure": figure}


def on_paper(drawing: dict[str, Any]) -> go.Figure:
    """The figure of what :meth:`Drawing.to_dict` gave, in the light theme's colours, for pages without themes."""
    text = json.dumps(drawing["figure"])
    for name, colour in light_colours().items():
        text = text.replace(f'"var({name})"', f'"{colour}"')
    return plotly.io.from_json(text)


def plain(text: str) -> str:
    """``text`` safe in Plotly's labels, which take a few HTML tags for formatting."""
    return html.escape(text, quote=False).replace("%{", "%\u200b{")


def error_bars(figures: Sequence[Figure], colour: str = MUTED, factor: float = 1.0) -> dict[str, Any] | None:
    """The 95% intervals of ``figures`` times ``factor``, as Plotly's error bars; None if there are none.

    The figures of one trace are of the same prompts: all have intervals, or these are too few for any.
    """
    if any(one.low is None or one.high is None for one in figures):
        return None  # for no interval Plotly would draw one without width
    return {
        "type": "data",
        "symmetric": False,
        "color": colour,
        "thickness": 1.2,
        "width": 3,
        "array": [factor * (one.high - one.value) for one in figures],
        "arrayminus": [factor * (one.value - one.low) for one in figures],
    }
