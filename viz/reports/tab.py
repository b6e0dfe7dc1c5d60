"""A tab that opens with shipped results and can measure again here, with progress and Stop."""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component

from decoding.backends.base import Backend
from decoding.errors import UserError
from decoding.evaluation.report import Table, drafts_tables, evaluation_tables, to_csv
from decoding.evaluation.results import drafts_from_dict, evaluation_from_dict, load_drafts, load_evaluation
from decoding.records.events import Event
from decoding.records.pairs import PairDescription
from decoding.records.suites import available_suites

from ..buttons import idle, make_buttons, running, stopping
from ..choices import pair_choices
from ..desk import answered
from ..memory import wire_memory
from ..session import Visits, delta_of, stream_of
from ..visitors import address_of
from .drafts import beside_evaluation, drafts_report
from .evaluation import evaluation_report
from .html import whole_page
from .kept import Kept, check_kind
from .papers import papers_file, papers_section
from .report import Report, Section, with_names
from .stale import STALE, is_stale

RESULTS = Path(__file__).resolve().parents[2] / "results"
TEMPLATE = """<div class="speculoscope sp-report">
<div class="sp-status" role="status" aria-live="polite" hidden></div>
<div class="sp-content"></div>
</div>"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the two tabs: the job it runs and the file it opens with."""

    job: str  # of Backend.run_job
    ending: str  # of results/<pair><ending>.json
    intro: str
    command: str
    load: Callable[[Path], Any]
    from_dict: Callable[[dict], Any]
    describe: Callable[[Any], Report]
    tables: Callable[[Any], list[Table]]
    beside: Callable[[Any, Path], list[str]]  # sentences that compare a shipped result with the other tab's
    more: Callable[[PairDescription, Path], list[Section]]  # sections from a second shipped file in the folder
    second: Callable[[str, Path], Path | None]  # (pair, folder) -> that file, if it is there
    options: dict[str, Any]

    def report(self, result: Any) -> dict[str, Any]:
        """The tab's content for ``result``, as plain JSON."""
        return json.loads(json.dumps(self.describe(result).to_dict()))


def chosen_apart(result: Any, folder: Path) -> list[str]:
    """Of a drafts result: why the Evaluation tab advises another SL, if it does."""
    path = folder / f"{result.setting.pair}.json"
    sentence = beside_evaluation(result, load_evaluation(path)) if path.is_file() else ""
    return [sentence] if sentence else []


EVALUATE = Kind(
    "evaluate",
    "",
    "Which policy is fastest on unseen prompts, and how certain is that?",
    "python -m decoding evaluate --suite all --split test --ship",
    load_evaluation,
    evaluation_from_dict,
    evaluation_report,
    evaluation_tables,
    lambda result, folder: [],
    lambda pair, folder: [papers_section(pair, folder)],
    papers_file,
    {},
)
DRAFTS = Kind(
    "drafts",
    "-drafts",
    "Every draft of the pair, every SL: which draft is best here, and how far should it guess?",
    "python -m decoding evaluate --suite all --split test --drafts all --ship",
    load_drafts,
    drafts_from_dict,
    drafts_report,
    drafts_tables,
    chosen_apart,
    lambda pair, folder: [],
    lambda pair, folder: None,
    {"drafts": "all"},
)


def build_report_tab(
    page: gr.Blocks, kind: Kind, backend: Backend, visits: Visits, memory: gr.BrowserState, folder: Path = RESULTS
) -> None:
    """Adds the tab's components to ``page``, whose context is open, and wires them; ``memory``: of the tab's form."""
    pairs, kept = backend.pairs(), Kept()
    gr.HTML(
        html_template=f"<p class='speculoscope sp-intro'>{kind.intro}</p>", js_on_load=None, apply_default_css=False
    )
    with gr.Accordion("Measure again here", open=False, elem_classes="sp-settings"), gr.Row(elem_classes="sp-ask"):
        pair = gr.Dropdown([("the default pair", ""), *pair_choices(pairs)], value="", label="Pair of models")
        suite = gr.Dropdown(["all", *available_suites()], value="all", label="Prompts")
        # Without bounds: Gradio would refuse numbers beyond them with an error that names no field.
        limit = gr.Number(12, label="Test prompts", precision=0, min_width=110)
        clock = gr.Number(4, label="of them on the clock", precision=0, min_width=110)
        minutes = gr.Number(2, label="Minutes on the clock, at most", min_width=110)
        run, stop = make_buttons("Run here", 110)
        run.elem_classes = ["sp-run-here"]
    view = gr.HTML(
        "",
        html_template=TEMPLATE,
        apply_default_css=False,
        elem_id=f"report-{kind.job}",
        js_on_load="window.SpeculoscopePage.report(element, props, watch, server);",
        server_functions=_answers(kind, pairs[0] if pairs else None, folder, kept),
    )
    form: dict[str, Component] = dict(pair=pair, suite=suite, limit=limit, clock=clock, minutes=minutes)
    _wire_memory(page, memory, form)
    _wire(kind, backend, visits, kept, list(form.values()), view, run, stop)


def _answers(kind: Kind, pair: PairDescription | None, folder: Path, kept: Kept) -> list[Callable[[dict], dict]]:
    """The server functions: the result to show, and a file of it."""

    @functools.cache
    def read() -> Any:
        path = folder / f"{pair.name}{kind.ending}.json" if pair else None
        if path is None or not path.is_file():
            raise UserError(
                f"No results are shipped for this pair yet. Measure some above, or in a terminal: {kind.command}"
            )
        return kind.load(path)

    second = kind.second(pair.name, folder) if pair else None

    @functools.cache
    def more() -> list[Section]:
        return kind.more(pair, folder) if pair else []

    @functools.cache
    def report() -> dict[str, Any]:
        result = read()
        content = kind.report(result)
        content["stamp"] = f"Shipped results · {content['stamp']}"
        if pair and is_stale(result.setting, pair):
            content["stamp"] += f" · {STALE}"
        content["sections"][0]["sentences"] += kind.beside(result, folder)
        content["sections"][1:1] = [asdict(replace(one, tables=with_names(one.tables))) for one in more()]
        content["papers"] = any(one.tables for one in more())
        return content

    @answered
    def shipped(query: dict) -> dict:
        measured = kept.get(query.get("id"))
        return {"report": _measured(kind, measured, query["id"]) if measured else report()}

    @answered
    def take(query: dict) -> dict:
        as_kind, measured = check_kind(query.get("kind")), kept.get(query.get("id"))
        if as_kind == "papers":
            return _second_file(kind, second)
        result = kind.from_dict(measured) if measured else read()
        tables = kind.tables(result) + ([] if measured else [table for one in more() for table in one.tables])
        writers: dict[str, Callable[[], str]] = {
            "json": lambda: json.dumps(asdict(result), indent=1),
            "csv": lambda: to_csv(tables),
            "html": lambda: whole_page(result, with_names(tables)),
        }
        mime = {"json": "application/json", "csv": "text/csv", "html": "text/html"}[as_kind]
        return {"name": f"speculoscope-{kind.job}.{as_kind}", "mime": mime, "text": writers[as_kind]()}

    return [shipped, take]


def _second_file(kind: Kind, path: Path | None) -> dict[str, Any]:
    if path is None:
        raise UserError("This tab has no figures on the papers' data sets.")
    return {"name": f"speculoscope-{kind.job}-papers.json", "mime": "application/json", "text": path.read_text("utf-8")}


def _measured(kind: Kind, result: dict[str, Any], identifier: str) -> dict[str, Any]:
    """The tab's content for a result that was measured here, with the id under which it is kept."""
    report = kind.report(kind.from_dict(result))
    report["stamp"] = f"Measured here · {report['stamp']}"
    report["id"] = identifier
    return report


def _wire_memory(page: gr.Blocks, memory: gr.BrowserState, form: dict[str, Component]) -> None:
    """The browser keeps the form, so that a measurement can be started again after a reload."""

    def restore(kept: Any) -> list:
        values = kept if isinstance(kept, dict) else {}
        return [values[name] if _fits(field, values.get(name)) else gr.skip() for name, field in form.items()]

    wire_memory(page, memory, form, restore, list(form.values()))


def _fits(field: Component, value: Any) -> bool:
    """Whether ``field`` can show ``value``, which anybody may have written."""
    if isinstance(field, gr.Dropdown):
        return value in [choice for _, choice in field.choices]
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _wire(
    kind: Kind,
    backend: Backend,
    visits: Visits,
    kept: Kept,
    inputs: list,
    view: gr.HTML,
    run: gr.Button,
    stop: gr.Button,
) -> None:
    async def measure(visitor: gr.Request, *values: Any) -> AsyncIterator[tuple]:
        yield gr.skip(), *running()
        try:
            options = job_options(kind, *values)
        except (UserError, TypeError, ValueError) as error:
            yield delta_of("failed", message=str(error)), gr.skip(), gr.skip()
        else:
            run_job = functools.partial(backend.run_job, kind.job, options)
            job = functools.partial(stream_of, run_job, functools.partial(_finish, kind, kept))
            async for delta in visits.deltas(job, visitor.session_hash or "", kind.job, address_of(visitor)):
                yield delta, gr.skip(), gr.skip()
        yield gr.skip(), *idle()

    def cancel(visitor: gr.Request) -> dict[str, Any]:
        visits.stop(visitor.session_hash or "", kind.job)
        return stopping()

    run.click(
        measure,
        inputs,
        [view, run, stop],
        show_progress="hidden",
        concurrency_limit=None,
        concurrency_id="race",
        api_visibility="private",
        trigger_mode="once",
    )
    stop.click(cancel, None, stop, queue=False, show_progress="hidden", api_visibility="private")


def job_options(kind: Kind, pair: Any, suite: Any, limit: Any, clock: Any, minutes: Any) -> dict[str, Any]:
    """The job's options from the form. Raises UserError."""
    for name, value, low, high in (
        ("the number of test prompts", limit, 1, 1000),
        ("the number of prompts on the clock", clock, 0, 1000),
        ("the minutes on the clock", minutes, 0, 60),
    ):
        if value is None or isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise UserError(f"Fill in {name}: the field must contain a number from {low} to {high:,}.")
    return {
        "pair": str(pair or ""),
        "suite": str(suite),
        "limit": int(limit),
        "clock_prompts": int(clock),
        "minutes": float(minutes),
        **kind.options,
    }


def _finish(kind: Kind, kept: Kept, event: Event) -> Event:
    if event.kind != "finished":
        return event
    result = event.data["result"]
    return Event(event.run, event.seq, "finished", {"report": _measured(kind, result, kept.add(result))})
