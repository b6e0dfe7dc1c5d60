"""The content of the Evaluation and Drafts tabs as plain data: sentences, tables, figures and code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from decoding.evaluation.report import Table, setting_lines
from decoding.evaluation.results import Setting
from decoding.evaluation.tables import STATIC_OPT

from ..figures.race import Drawing
from ..player.names import lane_name


@dataclass(slots=True)
class Section:
    """``drawings`` are dicts from :meth:`viz.figures.race.Drawing.to_dict`."""

    title: str
    sentences: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    drawings: list[dict[str, Any]] = field(default_factory=list)
    code: list[tuple[str, str]] = field(default_factory=list)  # (title, text to copy)


@dataclass(slots=True)
class Report:
    """A tab's content. ``stamp`` is one line on the origin of the figures."""

    stamp: str
    sections: list[Section]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def make_report(setting: Setting, first: Section, tables: list[Table], drawings: list[Drawing]) -> Report:
    """``first`` with the main table and the figures under it, then the other tables and how it was measured."""
    tables = with_names(tables)
    first.tables, first.drawings = tables[:1], [drawing.to_dict() for drawing in drawings]
    sections = [first]
    if tables[1:]:
        sections.append(Section("More tables", tables=tables[1:]))
    sections.append(Section("How this was measured", setting_lines(setting)))
    return Report(stamp(setting), sections)


def with_names(tables: Sequence[Table]) -> list[Table]:
    """``tables`` with lanes by the names that they have in the race."""
    return [replace(table, rows=[[_named(cell) for cell in row] for row in table.rows]) for table in tables]


def _named(cell: str) -> str:
    """ "static-opt (static:3)" -> "static-opt (Static 3)"; what is no lane stays."""
    label, bracket, lane = cell.partition(" (")
    return f"{label} ({lane_name(lane[:-1])})" if bracket and label == STATIC_OPT else lane_name(cell)


def stamp(setting: Setting) -> str:
    """Pair, draft, machine, number format and date of a result, in one line."""
    machine = setting.machine
    where = machine.gpu or f"{machine.processor}, {machine.cores} cores"
    return " · ".join([f"{setting.pair} with draft {setting.draft}", where, setting.target_dtype, setting.created[:10]])
