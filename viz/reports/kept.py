"""Results measured on this server, so that they are still there after a reload."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import Any

from decoding.errors import UserError
from decoding.records.events import new_id

MOST = 40  # results kept; the oldest goes first


class Kept:
    """Results (plain dicts) by an unguessable id."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._results: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, result: dict[str, Any]) -> str:
        """Keep ``result``; returns its id."""
        identifier = new_id()
        with self._lock:
            self._results[identifier] = json.dumps(result)
            while len(self._results) > self._most:
                self._results.popitem(last=False)
        return identifier

    def get(self, identifier: Any) -> dict[str, Any] | None:
        """The result with that id; None if it is not kept, or no longer."""
        with self._lock:
            text = self._results.get(identifier) if isinstance(identifier, str) else None
        return json.loads(text) if text else None


def check_kind(kind: Any) -> str:
    """The requested kind of file. Raises UserError if there is no such kind."""
    if kind not in ("json", "csv", "html", "papers"):
        raise UserError("A result can be saved as json, csv or html.")
    return kind
