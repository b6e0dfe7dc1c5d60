"""A table as people read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Table:
    """A table: ``note`` says what stands in it and how it was made; cells are text."""

    title: str
    note: str
    columns: list[str]
    rows: list[list[str]]
