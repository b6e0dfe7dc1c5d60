"""The runs that the page can still talk about: recorded ones, and the last few that visitors made or opened."""

from __future__ import annotations

import tempfile
import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

from decoding.backends.recorded import RecordedBackend
from decoding.errors import UserError
from decoding.records.events import IDENTIFIER, new_id
from decoding.records.run_file import load_run, run_from_json, save_run
from decoding.records.trace import Run

from .player.payload import Origin

MAX_UPLOAD_BYTES = 8 * 2**20
KEEP = 200  # runs kept on disk while the page runs
WARM = 4  # of them kept in memory
OPENED = "opened-"  # how the ids of files that visitors opened begin


class RunStore:
    """Runs by id. Those made here lie in a folder that vanishes with the process, so that memory stays flat."""

    def __init__(self, recorded: RecordedBackend, keep: int = KEEP, warm: int = WARM) -> None:
        self.recorded = recorded
        self._folder = tempfile.TemporaryDirectory(prefix="speculoscope-runs-")
        self._kept: OrderedDict[str, Path] = OrderedDict()
        self._warm: OrderedDict[str, Run] = OrderedDict()
        self._keep, self._most_warm = keep, warm
        self._lock = threading.Lock()

    def add(self, run: Run) -> None:
        """Keep ``run``; the oldest one goes when there are too many."""
        path = Path(self._folder.name) / f"{run.id}.json"
        save_run(run, path)
        with self._lock:
            self._kept[run.id] = path
            self._remember(run)
            while len(self._kept) > self._keep:
                gone, path = self._kept.popitem(last=False)
                self._warm.pop(gone, None)
                path.unlink(missing_ok=True)

    def open(self, text: str) -> Run:
        """Check and keep a run that a visitor brought, under an id of our own. Raises UserError."""
        if not isinstance(text, str) or len(text.encode("utf-8", "surrogatepass")) > MAX_UPLOAD_BYTES:
            raise UserError(f"This file is larger than {MAX_UPLOAD_BYTES // 2**20} MB, the most that this page opens.")
        run = replace(run_from_json(text), id=f"{OPENED}{new_id()}")
        self.add(run)
        return run

    def get(self, identifier: str) -> Run:
        """The run of that id. Raises UserError."""
        if not isinstance(identifier, str) or not IDENTIFIER.fullmatch(identifier):
            raise UserError("This is not the name of a run: names have letters, digits, - and _, at most 64.")
        with self._lock:
            if identifier in self._warm:
                self._warm.move_to_end(identifier)
                return self._warm[identifier]
            path = self._kept.get(identifier)
        try:
            run = load_run(path) if path else self.recorded.load(identifier)
        except UserError as error:
            raise UserError(
                f"The run {identifier} is not kept here (any more): run it again, or open its file. ({error})"
            ) from error
        with self._lock:
            self._remember(run)
        return run

    def origin(self, identifier: str) -> Origin:
        """Where the run of that id came from."""
        if identifier.startswith(OPENED):
            return "imported"
        return "live" if identifier in self._kept else "recorded"

    def _remember(self, run: Run) -> None:
        self._warm[run.id] = run
        self._warm.move_to_end(run.id)
        while len(self._warm) > self._most_warm:
            self._warm.popitem(last=False)
