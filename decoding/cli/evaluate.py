"""``python -m decoding evaluate``: the policies, or the drafts, over a prompt suite."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from ..evaluation.files import WORK, spread_name, tables_of, write_report
from ..evaluation.files import ship as ship_result
from ..evaluation.options import EvaluationOptions, check_options, default_lanes
from ..evaluation.places import advise
from ..evaluation.progress import Progress
from ..evaluation.report import advice_markdown, setting_lines
from ..evaluation.results import DraftsResult, Result
from ..records.number_formats import number_format
from .console import CANCELLED, cancel_on_interrupt, err, out, print_json, progress_bar, visible
from .options import AsJson, Dtype, MaxNewTokens, PairName, Target, Weights
from .serve import need_ray
from .tables import show_table


def evaluate(
    suite: Annotated[str, typer.Option(help="Suites, joined by commas (see `suites list`), all, or papers.")] = "all",
    split: Annotated[str, typer.Option(help="The reported split.")] = "test",
    limit: Annotated[
        int | None, typer.Option(help="Prompts of the split, interleaved over the suites; default: all.")
    ] = None,
    validation_limit: Annotated[int | None, typer.Option(help="Validation prompts; default: as --limit.")] = None,
    lanes: Annotated[str, typer.Option(help="Comma-separated; default: every policy, and static-opt (tuned).")] = "",
    pair: PairName = "",
    target: Target = "",
    draft: Annotated[str, typer.Option(help="With --target: its draft. Without: a draft of the pair.")] = "",
    drafts: Annotated[str, typer.Option(help="all: compare all drafts of the pair.")] = "",
    dtype: Dtype = "auto",
    weights: Weights = "auto",
    max_new_tokens: MaxNewTokens = 128,
    clock_prompts: Annotated[int, typer.Option(help="Number of prompts that are also timed.")] = 40,
    repeats: Annotated[int, typer.Option(help="Timed runs of each of them.")] = 2,
    minutes: Annotated[float | None, typer.Option(help="Stop timing after this many minutes.")] = 10.0,
    chain_minutes: Annotated[
        float | None, typer.Option(help="Minutes for collecting texts; default: all prompts.")
    ] = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for working files and reports; an existing one is continued.")
    ] = None,
    ray: Annotated[
        str, typer.Option("--ray", metavar="ADDRESS", help="Spread the prompts over the replicas of this Ray cluster.")
    ] = "",
    ship: Annotated[
        bool,
        typer.Option(
            "--ship", help="Also write results/<pair>.json, which the page shows (suite papers: a file next to it)."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure the lookahead policies (or all drafts) over a prompt suite: tables, figures, intervals."""
    options = check_options(
        EvaluationOptions(
            pair=pair,
            target=target,
            draft=draft if target else "",
            dtype=dtype,
            weights=weights,
            suite=suite,
            split=split,
            limit=limit,
            validation_limit=validation_limit,
            lanes=[lane.strip() for lane in lanes.split(",") if lane.strip()] or default_lanes(),
            max_new_tokens=max_new_tokens,
            clock_prompts=clock_prompts,
            repeats=repeats,
            minutes=minutes,
            chain_minutes=chain_minutes,
            draft_name="" if target else draft,
            drafts=drafts,
        )
    )
    with cancel_on_interrupt() as cancel:
        if ray:
            result, folder = _run_on_cluster(options, out_folder, ray, cancel)
        else:
            result, folder = _run(options, out_folder, cancel.is_set)
    if result is None:
        err.print(Text(f"Stopped. What was collected is kept in {folder}: the same command continues from there."))
        raise typer.Exit(CANCELLED)
    written = write_report(result, folder)
    written += ship_result(result) if ship else []
    if as_json:
        from dataclasses import asdict

        print_json(asdict(result))
    else:
        show_result(result)
    err.print(Text("Wrote " + ", ".join(str(path) for path in written)))
    err.print(Text(f"Figures as a page: python -m viz.reports {written[2]}"))


def _run(options: EvaluationOptions, folder: Path | None, cancelled: Callable[[], bool]) -> tuple[Result | None, Path]:
    """Runs it with progress on stderr; None if it was cancelled. Raises UserError."""
    from ..engines.pair import load_pair
    from ..evaluation.job import run_evaluation, work_name

    with progress_bar() as progress:
        bar = progress.add_task("Loading the models", total=None)
        pair = load_pair(options.pair, options.target, options.draft, number_format(options))
        folder = folder or WORK / work_name(options, pair)
        return _follow(run_evaluation(options, pair, folder, cancelled), progress, bar), folder


def _run_on_cluster(
    options: EvaluationOptions, folder: Path | None, address: str, cancel: threading.Event
) -> tuple[Result | None, Path]:
    """As :func:`_run`, on the replicas of a Ray cluster; no model is loaded here. Raises UserError."""
    from ..backends.spread import evaluate_spread

    ray_serve = need_ray()
    folder = folder or WORK / spread_name(options)
    with progress_bar() as progress:
        bar = progress.add_task("Joining the cluster", total=None)
        replicas = ray_serve.Replicas(address)
        try:
            steps = evaluate_spread(replicas.backend, replicas.running, options, folder, cancel)
            return _follow(steps, progress, bar), folder
        finally:
            replicas.close()


def _follow(steps: Iterator[Progress | Result], progress: Any, bar: Any) -> Result | None:
    for step in steps:
        if not isinstance(step, Progress):
            return step
        progress.update(bar, description=visible(step.message), total=1.0, completed=step.fraction)
    return None


def show_result(result: Result) -> None:
    """Tables on the terminal."""
    for line in setting_lines(result.setting):
        out.print(Text(visible(line)))
    for table in tables_of(result):
        show_table(table, out)
    if isinstance(result, DraftsResult):
        out.print(Text(visible(advice_markdown(advise(result)))))
