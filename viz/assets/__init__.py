"""The files that the browser gets in addition to Gradio's: this page's scripts and styles, and Plotly on demand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import plotly
from gradio.routes import STATIC_TEMPLATE_LIB, templates
from jinja2 import ChoiceLoader, DictLoader, FileSystemLoader
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ..core.assets import TAGLINE, learn_css, learn_js, player_css, script, styles

BEGIN = "<script>window.SpeculoscopePage.begin();</script>"
TEMPLATES = ("frontend/index.html", "frontend/share.html")  # Gradio's, of the page's document


def head() -> str:
    """Styles and scripts for the document's ``<head>``, so that the first paint needs no further request."""
    page_css = player_css() + styles("assets/page.css")
    page_js = script("assets/js/main.js", "SpeculoscopePage")
    if re.search(r"</(script|style)", page_css + page_js, re.IGNORECASE):
        raise ValueError("A style or script contains a closing tag that would end its element early.")
    description = f'<meta name="description" content="{TAGLINE}">'
    return f"{description}\n<style id='speculoscope-style'>{page_css}</style>\n<script>{page_js}</script>"


def put_into_document() -> None:
    """Makes Gradio write :func:`head` and BEGIN into the page's document.

    So the first paint waits neither for Gradio nor for other files: Gradio's own ``head`` option reaches the browser as
    one of the settings that its scripts read when they have all been loaded, about a second later.
    """
    original = FileSystemLoader(STATIC_TEMPLATE_LIB)
    texts = {name: original.get_source(templates.env, name)[0] for name in TEMPLATES}
    for place, part in (("</head>", head()), ("<gradio-app", BEGIN)):  # nothing stands before gradio-app on the page
        whole = f"{{% raw %}}{part}{{% endraw %}}{place}"
        texts = {name: text.replace(place, whole, 1) for name, text in texts.items()}
    templates.env.loader = ChoiceLoader([DictLoader(texts), original])


def routes() -> list[Route | Mount]:
    """Plotly's bundle from the installed package, and the Learn tab's script: nothing comes from a CDN."""
    return [
        Mount("/speculoscope", StaticFiles(directory=Path(plotly.__file__).parent / "package_data")),
        Route("/speculoscope-learn/learn.js", _served(learn_js(), "text/javascript")),
        Route("/speculoscope-learn/learn.css", _served(learn_css(), "text/css")),
    ]


def _served(text: str, mime: str) -> Callable[[Request], Response]:
    """An endpoint that answers with ``text``."""
    return lambda request: Response(text, media_type=mime, headers={"cache-control": "no-cache"})
