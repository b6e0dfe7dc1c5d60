"""``python -m decoding evaluate``: the policies, or the drafts, over a prompt suite."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from ..errors import UserError
from ..evaluation.advice import recommend
from ..evaluation.options import EvaluationOptions, check_options, default_lanes
from ..evaluation.report import WORK, advice_markdown, setting_lines, spread_name, tables_of, write_report
from ..evaluation.report import ship as ship_result
from ..evaluation.results import SHIPPED, EvaluationResult, Progress, load_result
from ..evaluation.table import Table
from ..records.request import number_formats
from ..records.run_file import to_plain
from .console import (
    CANCELLED,
    AsJson,
    Tell,
    as_text,
    cancel_on_interrupt,
    err,
    make_folder,
    out,
    print_json,
    progress_bar,
    refuse_beside,
    with_evaluation_options,
)
from .serve import need_ray


@with_evaluation_options
def evaluate(
    context: typer.Context,
    lanes: Annotated[
        str,
        typer.Option(
            help="Lanes, separated by commas. Default: every policy that guesses chains, and static-opt (tuned). Trees "
            "are left out unless named: tree-opt (tuned), costtree."
        ),
    ] = "",
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for working files and reports; an existing one is continued.")
    ] = None,
    ray: Annotated[
        str, typer.Option("--ray", metavar="ADDRESS", help="Share the prompts among this Ray cluster's replicas.")
    ] = "",
    ship: Annotated[
        bool,
        typer.Option(
            "--ship", help="Also write results/<pair>.json, which the page shows (suite papers: a file next to it)."
        ),
    ] = False,
    result_file: Annotated[
        Path | None,
        typer.Option("--result", help="Measure nothing: show this result, and write its reports with --out or --ship."),
    ] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Measure the lookahead policies (or all drafts) over a prompt suite: tables, figures, intervals."""
    if result_file is not None:
        refuse_beside(context, "--result", "--ship")
    if out_folder is not None:
        make_folder(out_folder)
    if ship:
        make_folder(SHIPPED)
    if result_file is not None:
        _report(load_result(result_file), out_folder, ship, as_json)
        return
    if options["drafts"] and (lanes or (options["draft"] and not options["target"])):
        raise UserError("All drafts are compared, each with all policies: leave --draft and --lanes out.")
    named = [lane.strip() for lane in lanes.split(",") if lane.strip()]
    asked = check_options(EvaluationOptions(**options, lanes=named or default_lanes()))
    with cancel_on_interrupt() as cancel:
        if ray:
            result, folder = _run_on_cluster(asked, out_folder, ray, cancel)
        else:
            result, folder = _run(asked, out_folder, cancel.is_set)
    if result is None:
        err.print(Text(f"Stopped. What was collected is kept in {folder}. The same command continues from there."))
        raise typer.Exit(CANCELLED)
    _report(result, folder, ship, as_json)


def _report(result: EvaluationResult, folder: Path | None, ship: bool, as_json: bool) -> None:
    written = write_report(result, folder) if folder else []
    shown = ship_result(result) if ship else []
    if as_json:
        print_json(to_plain(result))
    else:
        show_result(result)
    if written or shown:
        err.print(Text("Wrote " + ", ".join(str(path) for path in [*written, *shown])))
    if written:
        err.print(Text(f"Figures as a page: python -m viz.reports {written[2]}"))


def _run(
    options: EvaluationOptions, folder: Path | None, cancelled: Callable[[], bool]
) -> tuple[EvaluationResult | None, Path]:
    """Runs it with progress on stderr; None if it was cancelled. Raises UserError."""
    from ..engines.pair import load_pair
    from ..evaluation.stages import open_evaluation, work_name

    with progress_bar("Loading the models") as progress:
        pair = load_pair(options.pair, options.target, options.target and options.draft, *number_formats(options))
        folder = folder or WORK / work_name(options, pair)
        return _follow(open_evaluation(options, pair, folder, cancelled).run(), progress), folder


def _run_on_cluster(
    options: EvaluationOptions, folder: Path | None, address: str, cancel: threading.Event
) -> tuple[EvaluationResult | None, Path]:
    """As :func:`_run`, on the replicas of a Ray cluster; no model is loaded here. Raises UserError."""
    from ..backends.spread import evaluate_spread

    ray_serve = need_ray()
    folder = folder or WORK / spread_name(options)
    with progress_bar("Joining the cluster") as progress:
        replicas = ray_serve.Replicas(address)
        try:
            steps = evaluate_spread(replicas.backend, replicas.running, options, folder, cancel)
            return _follow(steps, progress), folder
        finally:
            replicas.close()


def _follow(steps: Iterator[Progress | EvaluationResult], progress: Tell) -> EvaluationResult | None:
    for step in steps:
        if not isinstance(step, Progress):
            return step
        progress(step.message, step.fraction)
    return None


def show_result(result: EvaluationResult) -> None:
    for line in setting_lines(result.setting):
        out.print(as_text(line))
    for table in tables_of(result):
        show_table(table)
    if result.drafts:
        out.print(as_text(advice_markdown(recommend(result))))


def show_table(table: Table) -> None:
    """Prints ``table`` with numbers aligned right; a narrow terminal wraps cells and cuts nothing."""
    title = as_text(table.title, "bold")
    shown = RichTable(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for number, column in enumerate(table.columns):
        shown.add_column(as_text(column), justify="right" if number else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(as_text(cell.text) for cell in row))
    out.print(shown)
    out.print(as_text(table.note, "dim"))
