"""``python -m decoding bench``: our lanes against other engines, on this machine."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ..errors import UserError
from ..files import write_whole
from ..records.machine import describe_machine
from .console import err, one_task, out, print_json
from .options import AsJson, Draft, Dtype, MaxNewTokens, Target

if TYPE_CHECKING:
    from ..bench.against import Figure, Report


ENGINES = ("transformers", "llamacpp")


def bench(
    against: Annotated[str, typer.Option(help="The other engine: transformers or llamacpp.")] = "transformers",
    pair: Annotated[str, typer.Option(help="A pair by its name; default: every embedded pair.")] = "",
    target: Target = "",
    draft: Draft = "",
    limit: Annotated[int, typer.Option(help="Number of prompts.")] = 4,
    repeats: Annotated[int, typer.Option(help="Runs of each contender on each prompt.")] = 3,
    max_new_tokens: MaxNewTokens = 128,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "cpu",
    dtype: Dtype = "auto",
    weights: Annotated[str, typer.Option(help="Of our target: auto, or int4; transformers' keeps the dtype.")] = "auto",
    out_folder: Annotated[Path | None, typer.Option("--out", help="Write bench.json and bench.md here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tokens per second of our lanes and of another engine, interleaved: medians, spreads, ratios, goals."""
    if against not in ENGINES:
        raise UserError(f"There is no engine {against} to compare with: choose one of {', '.join(ENGINES)}.")
    if min(limit, repeats) < 1 or max_new_tokens < 8:
        raise UserError("Choose at least one prompt, one repeat and 8 new tokens.")
    from ..bench.runs import Work, bench_against_llamacpp, bench_all

    if out_folder is not None:
        _make(out_folder)
    form = dtype if weights == "auto" else weights
    work = Work(limit, repeats, max_new_tokens, device, form, os.cpu_count() or 1)
    run = bench_all if against == "transformers" else bench_against_llamacpp
    with one_task("Starting") as progress:
        reports = run(pair, target, draft, work, progress)
    data = [asdict(report) for report in reports]
    if out_folder is not None:
        _write(data, out_folder)
    if as_json:
        print_json(data)
        return
    for report in reports:
        _show(report)
    if against == "transformers":
        _show_goals(data)


def _make(folder: Path) -> None:
    """Before minutes of measuring: raises UserError if ``folder`` cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The reports cannot be written into {folder}: {error.strerror or error}.") from error


def _write(data: list[dict[str, Any]], folder: Path) -> None:
    """bench.json, and bench.md with the machine and the command. Raises UserError."""
    from ..bench.markdown import as_markdown

    command = shlex.join(["python", "-m", "decoding", *sys.argv[1:]])
    machine = describe_machine(_gpu_of(data))
    try:
        write_whole(folder / "bench.json", json.dumps(data, indent=1) + "\n")
        write_whole(folder / "bench.md", as_markdown(data, command, machine))
    except OSError as error:
        raise UserError(f"The report could not be written into {folder}: {error.strerror or error}.") from error
    err.print(Text(f"Wrote {folder / 'bench.json'}, {folder / 'bench.md'}"))


def _gpu_of(data: list[dict[str, Any]]) -> str | None:
    """The GPU that the reports ran on, or None."""
    from ..engines.loading import gpu_name

    return gpu_name(data[0]["device"])


def _show_goals(data: list[dict[str, Any]]) -> None:
    """Every goal beside its figure."""
    from ..bench.goals import verdicts

    rows = [verdict.row() for report in data for verdict in verdicts(report)]
    if not rows:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("pair", "goal", "measured", ""):
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)


def _show(report: Report) -> None:
    out.print(f"[bold]{report.pair}[/bold], {report.dtype}, {report.device}")
    if not report.figures:  # left out; the notes say why
        out.print("\n".join(report.notes), markup=False)
        return
    out.print(_speeds(report.figures))
    out.print(
        "tokens/s without the prompt, median and range; all: with the prompt; thr.: CPU threads; "
        "draft ... rest: where the time goes."
    )
    for ratio in report.ratios:
        out.print(
            f"{ratio.ours} / {ratio.theirs}: [bold]{ratio.median:.2f}x[/bold] ({ratio.low:.2f} to {ratio.high:.2f})"
        )
    for growth in report.growth:
        out.print(
            f"{growth.lane}: {growth.short_ms:.2f} ms per iteration at context 100, {growth.long_ms:.2f} at 900: "
            f"[bold]{growth.ratio:.2f}x[/bold] ({growth.low:.2f} to {growth.high:.2f})"
        )
    for one in report.passes:
        out.print(
            f"one {one.name} pass: {one.ms:.3f} ms; its bytes alone take {one.floor_ms:.3f} ms "
            f"({one.ms / one.floor_ms:.1f}x)"
        )
    out.print(f"All contenders wrote the same text on {report.same_text} of {report.n_prompts} prompts.")
    for note in report.notes:
        out.print(note)
    out.print()


def _speeds(figures: list[Figure]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))  # fits 80 columns
    table.add_column("", no_wrap=True)
    for column in ("tokens/s", "from", "to", "all", "thr.", "draft", "check", "policy", "rest"):
        table.add_column(column, justify="right", no_wrap=True)
    for figure in figures:
        shares = [f"{share:.1%}" for share in figure.shares or []]
        table.add_row(
            figure.name,
            _speed(figure.tokens_per_s),
            _speed(figure.low),
            _speed(figure.high),
            _speed(figure.end_to_end),
            str(figure.threads),
            *shares,
        )
    return table


def _speed(tokens_per_s: float) -> str:
    """With about four digits."""
    return f"{tokens_per_s:.1f}" if tokens_per_s < 1000 else f"{tokens_per_s:.0f}"
