"""The page: four tabs over one backend, its document, and its server."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
import plotly
from gradio.routes import STATIC_TEMPLATE_LIB, templates
from gradio.utils import get_function_params
from jinja2 import ChoiceLoader, DictLoader, FileSystemLoader
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from decoding.backends.base import Backend
from decoding.backends.recorded import RECORDINGS, RecordedBackend
from decoding.errors import UserError

from .api import DESCRIPTION, make_compare
from .forms import static_html
from .limits import BodyLimits
from .mcp_tools import check_installed, make_tools
from .race_tab import RaceTab
from .reports.report import DraftsReport, EvaluationReport
from .reports.tab import build_report_tab
from .scripts import TAGLINE, learn_css, learn_js, player_css, script, styles
from .server_functions import answers
from .session import BROKEN, Visits
from .store import RunStore

log = logging.getLogger(__name__)

SKIP = "<a class='sp-skip' href='#race'>Skip to the race</a>"
HEADER = f"{SKIP}<header class='speculoscope sp-header'><h1>Speculoscope</h1><p>{TAGLINE}</p></header>"
LEARN = '<div class="sp-learn" aria-busy="true"><p class="speculoscope sp-note">Opening the lessons…</p></div>'
BEGIN = "<script>window.SpeculoscopePage.begin();</script>"
TEMPLATES = ("frontend/index.html", "frontend/share.html")  # Gradio's, of the page's document
QUEUE_SIZE = 32  # events that wait or run; on ZeroGPU Gradio's own default would be 1
SESSIONS = 1000  # of tabs and programs whose fields Gradio keeps, half a megabyte each; by default it would be 10,000
IDLE_S = 0.02  # how long Gradio's idle queue sleeps; by default it wakes 1,000 times a second


class Page(gr.Blocks):
    """Gradio's page without logging of visitors' input."""

    offers_tools = False

    def validate_inputs(self, block_fn: Any, inputs: list[Any]) -> None:
        """Fills in defaults for arguments left out at the end: a program of yesterday knows fewer settings."""
        parameters = get_function_params(block_fn.fn) if block_fn.fn else []  # none: it runs in the browser alone
        left_out = parameters[len(inputs) : len(block_fn.inputs)]
        if inputs and all(has_default for _, has_default, *_ in left_out):
            inputs += [default for _, _, default, _ in left_out]
        try:
            super().validate_inputs(block_fn, inputs)
        except ValueError:
            names = f" ({', '.join(name for name, *_ in parameters)})" if parameters else ""
            name = block_fn.api_name or "This event"
            raise UserError(f"{name} takes {len(block_fn.inputs)} values{names}, not {len(inputs)}.") from None

    async def process_api(self, *inputs: Any, **more: Any) -> Any:
        """One event; every fault is a sentence, where Gradio's own answer would be ``{"error": null}``."""
        try:
            return await super().process_api(*inputs, **more)
        except gr.Error as error:  # it names the value that a component refuses
            sentence = error.message
        except UserError as error:
            sentence = str(error)
        except Exception:
            log.exception("an event of the page failed")
            sentence = BROKEN
        raise gr.Error(sentence, print_exception=False)

    def waiting(self, session: str) -> int:
        """Number of messages in the queue that ``session`` has not fetched."""
        messages = self._queue.pending_messages_per_session
        return messages[session].qsize() if session in messages else 0


def build_page(backend: Backend, recordings: str | Path = RECORDINGS, mcp: bool = False) -> Page:
    """Builds the page over ``backend``; recorded runs come from the folder ``recordings``.

    ``mcp``: also offer tools to language models. Raises UserError if the package for that is missing.
    """
    if mcp:
        check_installed()
    recorded = RecordedBackend(recordings)
    store = RunStore(recorded)
    visits = Visits()
    with Page(title="Speculoscope", analytics_enabled=False, fill_width=True) as page:
        static_html(HEADER)
        with gr.Tabs(elem_classes="sp-tabs", overflow_behavior="wrap"):  # a menu would hide tabs on narrow phones
            with gr.Tab("Race", id="race"):
                RaceTab(page, backend, recorded, store, visits)
            with gr.Tab("Learn", id="learn"):
                functions = answers(store, visits)
                static_html(LEARN, "learn(element, server)", elem_id="learn", server_functions=functions)
            with gr.Tab("Evaluation", id="evaluation"):
                build_report_tab(page, EvaluationReport, backend, visits)
            with gr.Tab("Drafts", id="drafts"):
                build_report_tab(page, DraftsReport, backend, visits)
        page.offers_tools = mcp
        if mcp:
            for tool in make_tools(backend, store, visits):
                gr.api(tool, api_name=tool.__name__, queue=False)
        compare = make_compare(backend, visits, page.waiting)
        compare._mcp_type = "none"  # no tool: its answer is a whole run file
        gr.api(
            compare,
            api_name="compare",
            api_description=DESCRIPTION,
            concurrency_limit=None,
            concurrency_id="race",
        )

        def leave(visitor: gr.Request) -> None:
            visits.stop(visitor.session_hash or "")

        page.unload(leave)
    return page


def theme() -> gr.themes.Base:
    """A quiet theme in the player's colours with system fonts, so that none is fetched."""
    base = gr.themes.Base(
        primary_hue="stone",
        neutral_hue="stone",
        spacing_size="sm",
        radius_size="md",
        font=["system-ui", "Segoe UI", "sans-serif"],
        font_mono=["ui-monospace", "SF Mono", "Menlo", "monospace"],
    )
    colours = {  # variables of core/base.css, which has both themes
        "background_fill_primary": "card",
        "background_fill_secondary": "bg",
        "block_background_fill": "card",
        "input_background_fill": "soft",
        "body_text_color_subdued": "mute",
        "block_label_text_color": "mute",
        "block_title_text_color": "mute",
        "border_color_primary": "line",
        "block_border_color": "line",
        "button_primary_background_fill": "ink",
        "button_primary_background_fill_hover": "check",
        "button_primary_text_color": "card",
    }
    both = {f"{name}{theme}": f"var(--sd-{one})" for name, one in colours.items() for theme in ("", "_dark")}
    body = {"body_background_fill": "#fbfaf7", "body_text_color": "#1d1d22"}  # Gradio paints them before its styles
    return base.set(**both, **body, body_background_fill_dark="#16171c", body_text_color_dark="#ecebf0")


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


def serve(page: Page, **options: Any) -> tuple:
    """Launches ``page``; ``options`` go to Gradio's ``launch`` (server_name, server_port, prevent_thread_lock)."""
    # Gradio would keep the last 10,000 events for a monitor that is off here.
    os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "1")
    os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", str(10**9))
    page.queue(max_size=QUEUE_SIZE, default_concurrency_limit=4)
    page._queue.sleep_when_free = IDLE_S
    page._queue.progress_update_sleep_when_free = 0.25
    # Gradio compresses files alone, by their endings: neither its page nor its answers, of which a run is the largest.
    packing = Middleware(GZipMiddleware, compresslevel=5)
    put_into_document()
    return page.launch(
        theme=theme(),
        app_kwargs={"routes": routes(), "middleware": [packing, Middleware(BodyLimits)]},
        ssr_mode=False,
        mcp_server=page.offers_tools,
        show_error=False,
        enable_monitoring=False,
        run_history=False,
        max_file_size="1mb",
        state_session_capacity=SESSIONS,
        footer_links=["api", "settings"],
        # Else Gradio fetches the page once more, and if a busy machine does not answer in 3 s, asks for share=True.
        _frontend=False,
        **options,
    )
