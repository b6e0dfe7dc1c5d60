"""Tables for readers: cells that show a text and keep the number behind it, by which the page sorts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    """A column after the first. ``of``: key of a row -> the figure, which ``show`` writes, or the whole cell. ``note``
    joins the table's; a column that has one is left out where it is empty.
    """

    title: str
    of: Callable[[Any], Figure | Cell | None]
    show: Callable[[Figure], str] | str = ""
    note: str = ""


def make_table(title: str, note: str, first: str, rows: Iterable[tuple[str, Any]], columns: Sequence[Column]) -> Table:
    """One row per (name, key); the names are the cells of the column ``first``."""
    named = list(rows)
    filled = [(column, [cell(column.of(key), column.show) for _, key in named]) for column in columns]
    shown = [(column, cells) for column, cells in filled if not column.note or any(one.text for one in cells)]
    whole = [[Cell(name), *cells] for (name, _), *cells in zip(named, *(cells for _, cells in shown), strict=True)]
    notes = [note, *(column.note for column, _ in shown if column.note)]
    if any(one.value is not None and " [" in one.text for row in whole for one in row):
        notes.append("Square brackets: 95% bootstrap intervals over prompts.")
    return Table(title, " ".join(notes), [first, *(column.title for column, _ in shown)], whole)


def cell(found: Figure | Cell | None, show: Callable[[Figure], str] | str) -> Cell:
    """A figure as ``show`` writes it (a function, or the format of its value); empty for None."""
    if found is None or isinstance(found, Cell):
        return found or Cell()
    return Cell(f"{found.value:{show}}" if isinstance(show, str) else show(found), found.value)


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
