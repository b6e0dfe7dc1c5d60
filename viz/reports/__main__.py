"""``python -m viz.reports RESULT.json``: writes an evaluation's figures as an HTML page next to its result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decoding.errors import UserError
from decoding.evaluation.results import DraftsResult, EvaluationResult, load_drafts, load_evaluation

from .html import write_html


def main(results: Annotated[list[Path], typer.Argument(help="result.json or drafts-result.json files.")]) -> None:
    """Write report.html (for drafts: drafts-report.html) next to each result, and plotly.js once."""
    try:
        for path in results:
            typer.echo(f"Wrote {write_html(load(path), path.absolute().parent)}")
    except UserError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


def load(path: Path) -> EvaluationResult | DraftsResult:
    """The result in ``path``, of either kind. Raises UserError."""
    try:
        return load_evaluation(path)
    except UserError as first:
        try:
            return load_drafts(path)
        except UserError:
            raise first from None


if __name__ == "__main__":
    typer.run(main)
