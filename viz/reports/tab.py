"""A tab that opens with shipped results and can measure again here, with progress and Stop."""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component

from decoding.backends.base import Backend
from decoding.backends.stream import EventStream
from decoding.errors import UserError
from decoding.evaluation.report import to_csv
from decoding.evaluation.results import SHIPPED, load_result, result_from_dict
from decoding.records.events import Event, new_id
from decoding.records.pairs import PairDescription
from decoding.records.run_file import to_plain
from decoding.records.settings import Setting
from decoding.records.suites import available_suites

from ..choices import pair_choices
from ..forms import make_buttons, static_html, wire_job, wire_memory
from ..server_functions import answered
from ..session import Visits, stream_of
from ..store import Newest
from .__main__ import whole_page
from .report import Report

NUMBERS = {  # the form's fields of numbers, by the job's options
    "limit": Setting("Test prompts", "", "number_of_test_prompts", "whole", 12, low=1, high=1000),
    "clock_prompts": Setting("of them on the clock", "", "number_of_prompts_on_the_clock", "whole", 4, high=1000),
    "minutes": Setting("Minutes on the clock, at most", "", "minutes_on_the_clock", "number", 2, high=60),
}
MEASURED = "Measured here"  # begins the stamp
MOST_KEPT = 40  # results that were measured on this server; the oldest goes first
TEMPLATE = """<div class="speculoscope sp-report">
<div class="sp-status" role="status" aria-live="polite" hidden></div>
<div class="sp-content"></div>
</div>"""

log = logging.getLogger(__name__)


Kept = Newest[dict[str, Any]]
"""Results measured on this server (plain dicts) by an unguessable id, still there after a reload."""


def build_report_tab(page: gr.Blocks, kind: type[Report], backend: Backend, visits: Visits) -> None:
    """Adds the tab's components to ``page``, whose context is open, and wires them."""
    pairs, kept = backend.pairs(), Kept(MOST_KEPT)
    static_html(f"<p class='speculoscope sp-intro'>{kind.intro}</p>")
    with gr.Accordion("Measure again here", open=False, elem_classes="sp-settings"), gr.Row(elem_classes="sp-ask"):
        pair = gr.Dropdown([("the default pair", ""), *pair_choices(pairs)], value="", label="Pair of models")
        suite = gr.Dropdown(["all", *available_suites()], value="all", label="Prompts")
        numbers = {name: gr.Number(one.default, label=one.label, min_width=110) for name, one in NUMBERS.items()}
        buttons = make_buttons("Run here", 110)
        buttons[0].elem_classes = ["sp-run-here"]
    functions = _answers(kind, pairs[0] if pairs else None, SHIPPED, kept)
    script, name = "report(element, props, watch, server)", f"report-{kind.job}"
    view = static_html(TEMPLATE, script, elem_id=name, server_functions=functions)
    form: dict[str, Component] = dict(pair=pair, suite=suite, **numbers)

    def restore(kept: Any) -> list:
        """The form that the browser kept, so that a measurement can be started again after a reload."""
        values = kept if isinstance(kept, dict) else {}
        return [values[name] if _fits(field, values.get(name)) else gr.skip() for name, field in form.items()]

    wire_memory(page, form, view, restore, list(form.values()))

    def start(*values: Any) -> EventStream[Event]:
        run_job = functools.partial(backend.run_job, "evaluate", job_options(kind, *values))
        return stream_of(run_job, functools.partial(_finish, kind, kept))

    wire_job(kind.job, start, visits, list(form.values()), view, buttons)


def _answers(
    kind: type[Report], pair: PairDescription | None, folder: Path, kept: Kept
) -> list[Callable[[dict], dict]]:
    """The server functions: what the tab shows, and a file of it."""

    @functools.cache
    def shipped_report() -> tuple[Report, dict[str, Any]]:
        """The shipped result's report and its content."""
        path = kind.shipped_file(pair.name, folder) if pair else None
        if pair is None or path is None or not path.is_file():
            raise UserError(
                f"No results are shipped for this pair yet. Measure some above, or in a terminal: {kind.command}"
            )
        report = kind(load_result(path))
        return report, report.shipped_content(pair, folder)

    def shown(query: dict) -> tuple[Report, Callable[[], dict[str, Any]]]:
        """The report of a result that was measured here, else of the shipped one, and what gives its content."""
        if measured := kept.get(query.get("id")):
            report = kind(result_from_dict(measured))
            return report, functools.partial(report.content, MEASURED, id=query["id"])
        report, content = shipped_report()
        return report, lambda: content

    @answered
    def shipped(query: dict) -> dict:
        return {"report": shown(query)[1]()}

    @answered
    def take(query: dict) -> dict:
        return _as_file(*shown(query), query.get("kind"))

    return [shipped, take]


def _as_file(report: Report, content: Callable[[], dict[str, Any]], kind: Any) -> dict[str, str]:
    """The result as JSON, all figures as one long table, what the tab shows, or what was measured on the papers' data
    sets.

    Raises UserError.
    """
    second, ending, mime = report.second, f".{kind}", "application/json"
    if kind == "json":
        text = json.dumps(to_plain(report.result), indent=1)
    elif kind == "csv":
        mime, text = "text/csv", to_csv([report.result, *([second] if second else [])])
    elif kind == "html":
        mime, text = "text/html", whole_page(report.title, content())
    elif kind != "papers":
        raise UserError("A result can be saved as json, csv or html.")
    elif second is None:
        raise UserError("This tab has no figures on the papers' data sets.")
    else:
        ending, text = "-papers.json", json.dumps(to_plain(second), indent=1)
    return {"name": f"speculoscope-{report.job}{ending}", "mime": mime, "text": text}


def _fits(field: Component, value: Any) -> bool:
    """Whether ``field`` can show ``value``, which anybody may have written."""
    if isinstance(field, gr.Dropdown):
        return value in [choice for _, choice in field.choices]
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def job_options(kind: type[Report], pair: Any, suite: Any, *numbers: Any) -> dict[str, Any]:
    """The job's options from the form. Raises UserError."""
    read = {name: one.parse(number) for (name, one), number in zip(NUMBERS.items(), numbers, strict=True)}
    for name, one in NUMBERS.items():
        one.check(read[name])
    return {"pair": str(pair or ""), "suite": str(suite), **read, **kind.options}


def _finish(kind: type[Report], kept: Kept, event: Event) -> Event:
    if event.kind != "finished":
        return event
    result, identifier = event.data["result"], new_id()
    kept.keep(identifier, result)
    content = kind(result_from_dict(result)).content(MEASURED, id=identifier)
    return Event(event.run, event.seq, "finished", {"report": content})
