"""``python -m decoding bench``: our lanes against other engines, on this machine."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ..errors import UserError
from .console import out, print_json, progress_bar

if TYPE_CHECKING:
    from ..bench.against import Figure, Report


def bench(
    against: Annotated[str, typer.Option(help="The other engine; only transformers is supported.")] = "transformers",
    pair: Annotated[str, typer.Option(help="A pair by its name.")] = "",
    target: Annotated[str, typer.Option(help="A target: a folder or a Hub id; needs --draft.")] = "",
    draft: Annotated[str, typer.Option(help="Its draft: a folder or a Hub id.")] = "",
    limit: Annotated[int, typer.Option(help="Number of prompts.")] = 4,
    repeats: Annotated[int, typer.Option(help="Runs of each contender on each prompt.")] = 3,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens per text.")] = 128,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="The dtype of all models: auto, float32 or bfloat16.")] = "auto",
    weights: Annotated[str, typer.Option(help="Of our target: auto, or int4; transformers' keeps the dtype.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Tokens per second of our lanes and of transformers, interleaved: medians, spreads, ratios."""
    if against != "transformers":
        raise UserError(f"There is no engine {against} to compare with: the only one is transformers.")
    if min(limit, repeats) < 1 or max_new_tokens < 8:
        raise UserError("Ask for at least one prompt, one repeat and 8 new tokens.")
    from ..bench.runs import bench_all

    with progress_bar() as bar:
        task = bar.add_task("Starting", total=None)

        def progress(message: str, fraction: float | None) -> None:
            bar.update(task, description=message, completed=fraction or 0.0, total=None if fraction is None else 1.0)

        reports = bench_all(
            pair,
            target,
            draft,
            limit=limit,
            repeats=repeats,
            max_new_tokens=max_new_tokens,
            device=device,
            dtype=dtype,
            weights=weights,
            cores=os.cpu_count() or 1,
            progress=progress,
        )
    if as_json:
        print_json([_plain(report) for report in reports])
        return
    for report in reports:
        _show(report)


def _plain(report: Report) -> dict[str, Any]:
    data = asdict(report)
    for row, growth in zip(data["growth"], report.growth):
        row["ratio"] = growth.ratio
    return data


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
            f"[bold]{growth.ratio:.2f}x[/bold]"
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
    for column, justify in (
        ("", "left"),
        ("tokens/s", "right"),
        ("from", "right"),
        ("to", "right"),
        ("all", "right"),
        ("thr.", "right"),
        ("draft", "right"),
        ("check", "right"),
        ("policy", "right"),
        ("rest", "right"),
    ):
        table.add_column(column, justify=justify, no_wrap=True)
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
    """``value`` with about four digits."""
    return f"{tokens_per_s:.1f}" if tokens_per_s < 1000 else f"{tokens_per_s:.0f}"
