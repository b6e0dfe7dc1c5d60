"""``python -m viz.reports RESULT.json``: writes what the tab shows of a result as an HTML page next to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decoding.errors import UserError
from decoding.evaluation.results import load_result, write_text

from .html import whole_page
from .report import report_of


def main(results: Annotated[list[Path], typer.Argument(help="result.json or drafts-result.json files.")]) -> None:
    """Write report.html (for drafts: drafts-report.html) next to each result."""
    try:
        for result in results:
            report = report_of(load_result(result))
            page = result.absolute().with_name("drafts-report.html" if report.of_drafts else "report.html")
            write_text(page, whole_page(report.title, report.content("Measured")))
            typer.echo(f"Wrote {page}")
    except UserError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    typer.run(main)
