"""Results as the Evaluation and Drafts tabs show them: sentences, tables, figures and code, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from decoding.evaluation.results import ALL, Interval


@dataclass(slots=True)
class Table:
    """``columns`` are (heading, explanation on hover); the first cell of each row is its heading."""

    caption: str
    columns: list[tuple[str, str]]
    rows: list[list[str]]


@dataclass(slots=True)
class Section:
    title: str
    sentences: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    drawings: list[dict[str, Any]] = field(default_factory=list)  # {name, title, sentence, figure}
    code: list[tuple[str, str]] = field(default_factory=list)  # (what it is, the text to copy)


@dataclass(slots=True)
class Report:
    """A tab's content. ``stamp`` says in one line where the figures come from."""

    stamp: str
    sections: list[Section]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def interval_text(interval: Interval | None, form: str = "{:.2f}") -> str:
    """``2.41 [2.30, 2.52]``; "" where there is none."""
    if interval is None:
        return ""
    return f"{form.format(interval.value)} [{form.format(interval.low)}, {form.format(interval.high)}]"


def percent_text(interval: Interval | None) -> str:
    """``+10.9% [7.8, 13.7]``; "" where there is none."""
    if interval is None:
        return ""
    return f"{interval.value:+.1%} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def suites_of(groups: Sequence[str]) -> list[str]:
    """All suites, the row over all of them first."""
    return [ALL, *sorted(one for one in groups if one != ALL)]
