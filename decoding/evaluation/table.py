"""A table for readers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Table:
    """A table of text cells; ``note`` explains its content and method."""

    title: str
    note: str
    columns: list[str]
    rows: list[list[str]]
