"""What the browser may ask of the server besides running: one small, checked, cheap answer each.

These functions bypass Gradio's queue (they are plain POSTs), so they look things up, never decode, and take what
comes as hostile. A refusal is ``{"error": sentence}``.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from decoding.errors import UserError
from decoding.records.run_file import run_to_json
from decoding.records.trace import Run

from .figures.race import draw_run
from .player.details import token_details
from .player.export import export_html
from .player.payload import player_payload
from .session import BROKEN, Visits
from .settings import command_line, link_query
from .store import RunStore
from .table import run_csv

log = logging.getLogger(__name__)
Query = dict[str, Any]
Answer = dict[str, Any]


def answered(function: Callable[[Query], Answer]) -> Callable[[Query], Answer]:
    """``function`` with its UserErrors told as sentences, and anything else logged and told as our fault."""

    @functools.wraps(function)
    def answer(query: Query) -> Answer:
        try:
            if not isinstance(query, dict):
                raise UserError("This question to the server has the wrong form; reload the page.")
            return json.loads(json.dumps(function(query)))  # plain JSON: Gradio's own writer refuses numbers as keys
        except UserError as error:
            return {"error": str(error)}
        except Exception:
            log.exception("The page's question %s failed", function.__name__)
            return {"error": BROKEN}

    return answer


def answers(store: RunStore, visits: Visits) -> list[Callable[[Query], Answer]]:
    """The functions that the race's JavaScript may call, by their names."""
    drawn, opening = _Drawn(store), threading.Lock()

    @answered
    def open_run(query: Query) -> Answer:
        run = store.get(query.get("run"))
        return {"payload": player_payload(run, origin=store.origin(run.id))}

    @answered
    def open_file(query: Query) -> Answer:
        with opening:  # one file at a time: checking a large one takes a second
            run = store.open(query.get("text"))
        return {"payload": player_payload(run, origin="imported")}

    @answered
    def details(query: Query) -> Answer:
        lane, iteration, index = (_whole(query.get(name)) for name in ("lane", "iteration", "index"))
        return token_details(store.get(query.get("run")), lane, iteration, index)

    @answered
    def figures(query: Query) -> Answer:
        return {"figures": drawn.figures(query.get("run"))}

    @answered
    def missed(query: Query) -> Answer:
        run, first = query.get("run"), _whole(query.get("first"))
        return {"deltas": visits.missed(run, first) if isinstance(run, str) and run else []}

    @answered
    def take(query: Query) -> Answer:
        run = store.get(query.get("run"))
        writers: dict[str, Callable[[], str]] = {
            "json": lambda: run_to_json(run),
            "csv": lambda: run_csv(run),
            "html": lambda: export_html(run, origin=store.origin(run.id)),
            "command": lambda: command_line(run.settings),
            "link": lambda: _link(store, run, query.get("t")),
        }
        kind = query.get("kind")
        if not isinstance(kind, str) or kind not in writers:
            raise UserError(f"A run can be taken along as {', '.join(writers)}.")
        name = f"speculoscope-{run.id}.{kind}" if kind in _MIME else kind
        return {"name": name, "mime": _MIME.get(kind, "text/plain"), "text": writers[kind]()}

    return [open_run, open_file, details, figures, missed, take]


_MIME = {"json": "application/json", "csv": "text/csv", "html": "text/html"}


def _link(store: RunStore, run: Run, t: Any) -> str:
    """A recorded run by its name and moment; any other by the settings that make it again."""
    if store.origin(run.id) != "recorded":
        return link_query(run.settings)
    moment = t if isinstance(t, int | float) and 0 <= t < 1e6 else 0.0
    return f"run={run.id}&t={moment:.3f}"


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise UserError("This question to the server has the wrong form; reload the page.")
    return value


class _Drawn:
    """Figures of the last few runs: visitors mostly look at the same recordings."""

    def __init__(self, store: RunStore, keep: int = 8) -> None:
        self._store, self._keep = store, keep
        self._figures: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def figures(self, identifier: str) -> list[dict[str, Any]]:
        run = self._store.get(identifier)
        with self._lock:
            if run.id not in self._figures:
                self._figures[run.id] = [drawing.to_dict() for drawing in draw_run(run)]
                while len(self._figures) > self._keep:
                    self._figures.popitem(last=False)
            return self._figures[run.id]
