"""Runs in Jupyter: decode, then watch.

    import viz.notebook as viz
    run = viz.compare("def mean(values):")
    viz.player(run)

or watch what your own calls of transformers' ``generate`` do:

    with viz.record(tokenizer) as recorder:
        model.generate(**inputs, assistant_model=draft)
    viz.player(recorder.run)

A run may also be the path of its run file. The output is in its own frame (the self-contained page that the dashboard
exports), so that the notebook's styles and scripts do not affect the player's.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from decoding.backends import choose_backend
from decoding.backends.base import Backend
from decoding.errors import UserError
from decoding.records.request import DEFAULT_LANES, SETTINGS, request_from_dict
from decoding.records.run_file import load_run, run_of_events
from decoding.records.trace import Run

from .export import export_html, export_lesson
from .figures.drawing import on_paper
from .figures.race import draw_run
from .lessons import read_lesson, shipped_lessons
from .player.payload import run_payload

if TYPE_CHECKING:
    from decoding.comparison.recorder import Recorder

PLAYER_HEIGHT, LESSON_HEIGHT = 760, 900  # px


class Frame:
    """A page inside a notebook's output."""

    def __init__(self, html: str, height: int) -> None:
        self.html, self.height = html, height

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{escape(self.html, quote=True)}" sandbox="allow-scripts allow-downloads allow-modals" '
            f'style="width: 100%; height: {self.height}px; border: 0" title="Speculoscope"></iframe>'
        )

    def save(self, path: str | Path) -> None:
        """Write the page as a file that needs no network."""
        Path(path).write_text(self.html, encoding="utf-8")


def compare(
    prompt: str, lanes: str | Sequence[str] | None = None, *, backend: Backend | None = None, **settings: Any
) -> Run:
    """Decode ``prompt`` with several policies and return the run.

    Args:
        lanes: lane strings, or one with commas between them; the usual four if not given.
        backend: where to run; this machine, or the one that SPECULOSCOPE_BACKEND names, if not given.
        settings: further fields of :class:`~decoding.records.request.CompareRequest` (max_new_tokens, pair, rule, ...).

    Raises:
        UserError: the run is not possible; the message says why.
    """
    texts = SETTINGS["lanes"].parse(lanes if isinstance(lanes, str) else list(lanes or DEFAULT_LANES))
    request = request_from_dict({"prompt": prompt, "lanes": texts, **settings})
    run = run_of_events((backend or _default_backend()).compare(request, threading.Event()))
    if run is None:
        raise UserError("The run ended without a result: try again.")
    return run


_default_backend = cache(choose_backend)


def player(run: Run | str | Path, height: int = PLAYER_HEIGHT) -> Frame:
    """The race of ``run``, playing. Raises UserError for a file that holds none."""
    return Frame(export_html(_read(run), origin="live" if isinstance(run, Run) else "imported"), height)


def _read(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else load_run(run)


def record(tokenizer: Any) -> Recorder:
    """A ``with`` block that records calls of transformers' ``generate``, assisted or plain; ``.run`` is the run.

    Args:
        tokenizer: the target's, of transformers.
    """
    from decoding.comparison.recorder import Recorder

    return Recorder(tokenizer)


def plots(run: Run | str | Path) -> list[go.Figure]:
    """The figures that the dashboard shows below the race, in its light colours. Raises UserError."""
    return [on_paper(drawing.to_dict()) for drawing in draw_run(_read(run))]


def lesson(run: Run | str | Path, name: str | Path = "ten-steps", height: int = LESSON_HEIGHT) -> Frame:
    """A shipped lesson, or a lesson file by its path, on ``run``. Raises UserError."""
    shipped, name, path = {one["id"]: one for one in shipped_lessons()}, str(name), Path(name)
    if name not in shipped and not path.is_file():
        raise UserError(f"There is no lesson {name[:80]}: choose one of {', '.join(shipped)}, or give a file's path.")
    chosen = shipped.get(name) or read_lesson(path.read_text(encoding="utf-8"))
    return Frame(export_lesson(chosen, run_payload(_read(run), details=True)), height)
