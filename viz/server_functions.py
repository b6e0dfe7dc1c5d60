"""The server's functions for the browser besides running: small, checked and cheap.

These functions bypass Gradio's queue (they are plain POSTs), so they only look things up, never decode, and treat all
input as hostile. A refusal is ``{"error": sentence}``.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from typing import Any

from decoding.errors import UserError
from decoding.records.run_file import request_again, run_to_json

from .export import export_lesson, run_csv
from .lessons import lesson_faults, read_lesson, recordings_of, shipped_lessons
from .limits import JUNK
from .player.details import token_details
from .player.payload import version_of
from .session import BROKEN, Visits
from .settings import command_line
from .store import RunStore

MAX_RUNS = 4  # of one saved lesson

log = logging.getLogger(__name__)
Query = dict[str, Any]
Answer = dict[str, Any]


def answered(function: Callable[..., Answer]) -> Callable[..., Answer]:
    """Wraps ``function``: a UserError becomes its sentence; other exceptions are logged and become a general one."""

    @functools.wraps(function)
    def answer(query: Query) -> Answer:
        try:
            if not isinstance(query, dict):
                raise UserError(JUNK)
            # Plain JSON: Gradio's own writer refuses numbers as keys.
            return json.loads(json.dumps(function(query)))
        except UserError as error:
            return {"error": str(error)}
        except Exception:
            log.exception("The page's request %s failed", function.__name__)
            return {"error": BROKEN}

    return answer


def answers(store: RunStore, visits: Visits) -> list[Callable[[Query], Answer]]:
    """The functions that the JavaScript of the race and of the Learn tab may call, by name.

    ``kind`` in a query for a run: as in :meth:`RunStore.payload`.
    """

    @functools.lru_cache(maxsize=8)  # visitors mostly look at the same recordings
    def figures_of(run: str, version: str) -> list[dict[str, Any]]:
        return store.drawn("figures", run)

    @answered
    def open_run(query: Query) -> Answer:
        return {"payload": store.payload(_kind(query), query.get("run"))}

    @answered
    def open_file(query: Query) -> Answer:
        return {"payload": store.open(_kind(query), query.get("text"))}

    @answered
    def details(query: Query) -> Answer:
        lane, iteration, index = (_whole(query.get(name)) for name in ("lane", "iteration", "index"))
        return token_details(store.get(query.get("run")), lane, iteration, index)

    @answered
    def figures(query: Query) -> Answer:
        run = store.get(query.get("run"))
        return {"figures": figures_of(run.id, version_of(run))}

    @answered
    def missed(query: Query) -> Answer:
        first, after = (_whole(query.get(name)) for name in ("first", "after"))
        return {"events": visits.missed(str(query.get("run")), first, after)}

    @answered
    def take(query: Query) -> Answer:
        run = store.get(query.get("run"))
        writers: dict[str, Callable[[], str]] = {
            "json": lambda: run_to_json(run),
            "csv": lambda: run_csv(run),
            "html": lambda: store.drawn("html", run.id),
            "command": lambda: command_line(request_again(run)),
            "link": lambda: store.link(run, query.get("t")),
        }
        kind = query.get("kind")
        if not isinstance(kind, str) or kind not in writers:
            raise UserError(f"A run can be saved as {', '.join(writers)}.")
        name = f"speculoscope-{run.id}.{kind}" if kind in _MIME else kind
        return {"name": name, "mime": _MIME.get(kind, "text/plain"), "text": writers[kind]()}

    @answered
    def learn_index(query: Query) -> Answer:
        return {
            "recordings": [{"id": info.id, "title": info.title} for info in store.recordings()],
            "lessons": list(shipped_lessons()),
            "faults": list(lesson_faults()),
        }

    @answered
    def learn_lesson(query: Query) -> Answer:
        return {"lesson": read_lesson(query.get("text"))}

    @answered
    def learn_export(query: Query) -> Answer:
        lesson = read_lesson(query.get("lesson"))
        if query.get("run") is None:
            raise UserError("Choose a run first: a saved lesson contains its runs.")
        payload = store.payload("learn", query["run"])
        named = recordings_of(lesson)
        others = [info.id for info in store.recordings() if info.id in named and info.id != query["run"]]
        if len(others) >= MAX_RUNS:
            raise UserError(f"This lesson shows more than {MAX_RUNS} runs, the most that one file holds.")
        text = export_lesson(lesson, payload, [store.payload("learn", one) for one in others])
        return {"name": f"speculoscope-{lesson['id']}.html", "text": text}

    return [open_run, open_file, details, figures, missed, take, learn_index, learn_lesson, learn_export]


def _kind(query: Query) -> str:
    """For which tab a run is asked for."""
    kind = query.get("kind", "payload")
    if kind not in ("payload", "learn"):
        raise UserError(JUNK)
    return kind


_MIME = {"json": "application/json", "csv": "text/csv", "html": "text/html"}


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise UserError(JUNK)
    return value
