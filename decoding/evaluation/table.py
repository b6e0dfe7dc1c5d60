"""Tables for readers: cells that show a text and keep the number behind it, by which the page sorts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..records.text import markdown_table
from .results import Figure


class Cell(NamedTuple):
    """``value``: the number that ``text`` shows first; None for words and for empty cells."""

    text: str = ""
    value: float | None = None


@dataclass(slots=True)
class Table:
    """A table of cells; ``note`` explains its content and method."""

    title: str
    note: str
    columns: list[str]
    rows: list[list[Cell]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column after the first. ``note`` joins the table's; a column that has one is left out where it is empty."""

    title: str
    cell: Callable[[str], Cell]  # key of a row -> its cell
    note: str = ""


def make_table(title: str, note: str, first: str, names: Mapping[str, str], columns: Sequence[Column]) -> Table:
    """One row per key of ``names``, which are the cells of the column ``first``."""
    filled = [(column, [column.cell(key) for key in names]) for column in columns]
    shown = [(column, cells) for column, cells in filled if not column.note or any(cell.text for cell in cells)]
    rows = [[Cell(name), *cells] for name, *cells in zip(names.values(), *(cells for _, cells in shown), strict=True)]
    notes = [note, *(column.note for column, _ in shown if column.note)]
    return Table(title, with_intervals(" ".join(notes), rows), [first, *(column.title for column, _ in shown)], rows)


def with_intervals(note: str, rows: Iterable[Sequence[Cell]]) -> str:
    """``note``, and what the square brackets in ``rows`` are, if a number has any."""
    bracketed = any(one.value is not None and " [" in one.text for row in rows for one in row)
    return f"{note} Square brackets: 95% bootstrap intervals over prompts." if bracketed else note


def cell(figure: Figure | None, show: Callable[[Figure], str] | str) -> Cell:
    """The figure as ``show`` writes it (a function, or the format of its value); empty if there is none."""
    if figure is None:
        return Cell()
    return Cell(f"{figure.value:{show}}" if isinstance(show, str) else show(figure), figure.value)


def times(figure: Figure) -> str:
    """ "1.62× [1.55, 1.69]"."""
    between = "" if figure.low is None else f" [{figure.low:.2f}, {figure.high:.2f}]"
    return f"{figure.value:.2f}×{between}"


def milliseconds(figure: Figure) -> str:
    return f"{figure.value * 1e3:.2f}"


def percent_interval(figure: Figure) -> str:
    """ "+3.0% [+1.7%, +4.1%]"."""
    between = "" if figure.low is None or figure.high is None else f" [{signed(figure.low)}, {signed(figure.high)}]"
    return f"{signed(figure.value)}{between}"


def signed(change: float) -> str:
    """A change in percent, with its sign, or "0.0%" without one if it rounds to that."""
    text = f"{change:+.1%}"
    return "0.0%" if text in ("+0.0%", "-0.0%") else text


def to_markdown(title: str, lines: Iterable[str], tables: Iterable[Table], more: str = "") -> str:
    """One Markdown document."""
    parts = [f"# {title}", "\n".join(f"- {line}" for line in lines)]
    for table in tables:
        body = markdown_table(table.columns, ([one.text for one in row] for row in table.rows))
        parts.append(f"## {table.title}\n\n{table.note}\n\n{body}")
    return "\n\n".join([*parts, *([more] if more else [])]) + "\n"
