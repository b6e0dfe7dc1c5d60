"""``python -m viz.reports RESULT.json``: writes what the tab shows of a result as one HTML page next to it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import plotly.io
import typer

from decoding.errors import UserError
from decoding.evaluation.results import load_result, write_text

from ..figures.drawing import on_paper
from .report import report_of


def main(results: Annotated[list[Path], typer.Argument(help="result.json files, or shipped results.")]) -> None:
    """Write a page next to each result: report.html for result.json, and of others the file's own name."""
    try:
        for result in results:
            report = report_of(load_result(result))
            page = result.absolute().with_name(result.stem.replace("result", "report") + ".html")
            write_text(page, whole_page(report.title, report.content("Measured")))
            typer.echo(f"Wrote {page}")
    except UserError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#1d2430;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.4rem}h2{font-size:1.15rem;margin:2.2rem 0 .2rem}h3{font-size:1rem;margin:1.4rem 0 .2rem}"
    "p{margin:.2rem 0}h1+p,h3+p,.wide+p{color:#5d6675}"
    ".wide,pre{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}"
    "td,th{text-align:right;padding:.15rem .8rem .15rem 0;border-bottom:1px solid #ddd;white-space:nowrap}"
    "td:first-child,th:first-child,.words{text-align:left}"
    "@media print{@page{size:landscape;margin:10mm}.wide{overflow:visible}td,th{white-space:normal}"
    "h2,h3{break-after:avoid}tr,.plotly-graph-div{break-inside:avoid}}"
)
_FIGURE: dict[str, Any] = {"include_plotlyjs": False, "full_html": False, "config": {"displayModeBar": False}}


def whole_page(title: str, content: dict[str, Any]) -> str:
    """A tab's ``content`` (:meth:`.report.Report.content`) as one file that needs no other; every text is escaped."""
    library = f"<script>{plotly.offline.get_plotlyjs()}</script>"
    window = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{window}{_element("title", title)}<style>{STYLE}</style>{library}'
    body = [_element("h1", title), _element("p", content["stamp"]), *map(_section, content["sections"])]
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>'


def _element(tag: str, text: str, kind: str = "") -> str:
    return f"<{tag}{kind}>{html.escape(text)}</{tag}>"


def _section(section: dict[str, Any]) -> str:
    """In the tab's order: what it says, settings to copy, tables, figures."""
    parts = [_element("h2", section["title"]), *(_element("p", text) for text in section["sentences"])]
    parts += [_element("p", title) + _element("pre", text) for title, text in section["code"]]
    return "".join([*parts, *map(_table, section["tables"]), *map(_drawing, section["drawings"])])


def _drawing(drawing: dict[str, Any]) -> str:
    body = plotly.io.to_html(on_paper(drawing), div_id=drawing["name"], **_FIGURE)
    sentence = _element("p", drawing["sentence"]) if drawing["sentence"] else ""
    return _element("h3", drawing["title"]) + sentence + body


def _table(table: dict[str, Any]) -> str:
    figures = [any(row[i][1] is not None for row in table["rows"]) for i in range(len(table["columns"]))]
    rows = [_row("th", table["columns"], figures)]
    rows += [_row("td", [text for text, _ in row], figures) for row in table["rows"]]
    body = f"<div class='wide'><table>{''.join(rows)}</table></div>"
    return _element("h3", table["title"]) + body + _element("p", table["note"])


def _row(tag: str, cells: Sequence[str], figures: Sequence[bool]) -> str:
    """One row; columns of words are aligned to the left."""
    kinds = ["" if figure else " class='words'" for figure in figures]
    return f"<tr>{''.join(_element(tag, text, kind) for text, kind in zip(cells, kinds))}</tr>"


if __name__ == "__main__":
    typer.run(main)
