"""A report's table on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ..evaluation.report import Table
from .console import visible


def show_table(table: Table, console: Console) -> None:
    """Prints ``table`` with numbers aligned right; a narrow terminal wraps cells and cuts nothing."""
    shown = RichTable(
        box=box.SIMPLE_HEAD, title=visible(table.title), title_justify="left", title_style="bold", pad_edge=False
    )
    for number, column in enumerate(table.columns):
        shown.add_column(Text(visible(column)), justify="right" if number else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(visible(cell)) for cell in row))
    console.print(shown)
    console.print(Text(visible(table.note), style="dim"))
