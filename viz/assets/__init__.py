"""What the browser gets besides Gradio's own files: our scripts and styles in the document, Plotly on demand."""

from __future__ import annotations

import re
from pathlib import Path

import plotly
from starlette.middleware import Middleware
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ..player.assets import player_css, player_js
from .document import Document

HERE = Path(__file__).resolve().parent
SCRIPTS = ("plots.js", "page.js", "report.js", "early.js")
TAGLINE = (
    "A small model, the draft, guesses ahead; a big one, the target, checks all guesses in one pass. Same text, sooner."
)
BEGIN = "<script>window.SpeculoscopePage.early.begin();</script>"


def head() -> str:
    """Styles and scripts for the document's ``<head>``, whole: the first paint waits for no further request."""
    styles = player_css() + (HERE / "page.css").read_text(encoding="utf-8")
    scripts = "\n".join([player_js(), *((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)])
    if re.search(r"</(script|style)", styles + scripts, re.IGNORECASE):
        raise ValueError("A style or script holds a closing tag that would end its element early.")
    description = f'<meta name="description" content="{TAGLINE}">'
    return f"{description}\n<style id='speculoscope-style'>{styles}</style>\n<script>{scripts}</script>"


def middleware() -> list[Middleware]:
    """What puts all of it into the document that the server sends."""
    return [Middleware(Document, head=head(), body=BEGIN)]


def routes() -> list[Route | Mount]:
    """Plotly's own bundle from the installed package, under /speculoscope: nothing comes from a CDN."""
    return [Mount("/speculoscope", StaticFiles(directory=Path(plotly.__file__).parent / "package_data"))]
