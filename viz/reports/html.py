"""An evaluation's figures as one HTML page, with plotly.js in a separate file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

import plotly.io

from decoding.evaluation.report import setting_lines
from decoding.evaluation.results import write_text
from decoding.evaluation.table import Table

from .report import Report

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#1d2430;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.4rem}h2{font-size:1.05rem;margin:2.2rem 0 .2rem}p,li{color:#5d6675;margin:.2rem 0}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}"
    "td,th{text-align:right;padding:.15rem .8rem .15rem 0;border-bottom:1px solid #ddd;white-space:nowrap}"
    "td:first-child,th:first-child,.words{text-align:left}"
)
LIBRARY = "plotly.min.js"


def write_html(report: Report, folder: Path) -> Path:
    """Writes the figures of ``report`` as report.html (drafts-report.html), and plotly.js. Raises UserError."""
    path = folder / ("drafts-report.html" if report.of_drafts else "report.html")
    write_text(path, page(report))
    if not (folder / LIBRARY).exists():
        write_text(folder / LIBRARY, plotly.offline.get_plotlyjs())
    return path


def whole_page(report: Report, tables: Sequence[Table]) -> str:
    """Figures and ``tables`` of ``report`` as one file that needs no other."""
    return page(report, tables, f"<script>{plotly.offline.get_plotlyjs()}</script>")


def page(
    report: Report,
    tables: Sequence[Table] = (),
    library: str = f'<script src="{LIBRARY}" charset="utf-8"></script>',
) -> str:
    """The whole document; every text in it is escaped. ``library`` is the element that brings plotly.js."""
    title, lines = report.title, setting_lines(report.result.setting)
    parts = [f"<h1>{html.escape(title)}</h1><ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"]
    for drawing in report.drawings():
        options = {"include_plotlyjs": False, "full_html": False, "config": {"displayModeBar": False}}
        body = plotly.io.to_html(drawing.on_paper(), div_id=drawing.name, **options)
        parts.append(f"<h2>{html.escape(drawing.title)}</h2><p>{html.escape(drawing.sentence)}</p>{body}")
    parts += [_table(table) for table in tables]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}{library}</head><body>{"".join(parts)}</body></html>'


def _row(tag: str, cells: Sequence[str], figures: Sequence[bool]) -> str:
    """One row; columns of words are aligned to the left."""
    kinds = ["" if figure else " class='words'" for figure in figures]
    return f"<tr>{''.join(f'<{tag}{kind}>{html.escape(text)}</{tag}>' for text, kind in zip(cells, kinds))}</tr>"


def _table(table: Table) -> str:
    figures = [any(row[i].value is not None for row in table.rows) for i in range(len(table.columns))]
    rows = [_row("th", table.columns, figures)]
    rows += [_row("td", [cell.text for cell in row], figures) for row in table.rows]
    head = f"<h2>{html.escape(table.title)}</h2>"
    return f"{head}<div class='wide'><table>{''.join(rows)}</table></div><p>{html.escape(table.note)}</p>"
