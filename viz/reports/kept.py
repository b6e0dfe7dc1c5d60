"""Results that were measured here, so that a reload finds them again; and what can be taken along of a result."""

from __future__ import annotations

import csv
import io
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from decoding.errors import UserError
from decoding.evaluation.report import Table

MOST = 40  # results kept; the oldest goes first


class Kept:
    """Results (plain dicts) by an id that nobody guesses."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._results: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, result: dict[str, Any]) -> str:
        """Keep ``result``; returns its id."""
        identifier = secrets.token_hex(12)
        with self._lock:
            self._results[identifier] = json.dumps(result)
            while len(self._results) > self._most:
                self._results.popitem(last=False)
        return identifier

    def get(self, identifier: Any) -> dict[str, Any] | None:
        """The result of that id; None where it is not kept (any more)."""
        with self._lock:
            text = self._results.get(identifier) if isinstance(identifier, str) else None
        return json.loads(text) if text else None


def tables_csv(tables: Sequence[Table]) -> str:
    """All tables as CSV, one under the other: a line with the title, one with the columns, the rows, an empty line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for table in tables:
        writer.writerow([table.title])
        writer.writerow(table.columns)
        writer.writerows(table.rows)
        writer.writerow([])
    return out.getvalue()


def check_kind(kind: Any) -> str:
    """The kind of file that was asked for. Raises UserError."""
    if kind not in ("json", "csv", "html"):
        raise UserError("A result can be taken along as json, csv or html.")
    return kind
