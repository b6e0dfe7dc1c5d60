"""The runs that the page can show: recorded ones, the last ones that visitors made or opened, those that links name."""

from __future__ import annotations

import base64
import math
import os
import threading
import time
import zlib
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Generic, TypeVar

from decoding.backends.recorded import OF_LESSONS, RecordedBackend, RecordingInfo
from decoding.errors import UserError, explained
from decoding.files import ProcessFolder, cache_folder, write_whole
from decoding.records.events import IDENTIFIER, new_id
from decoding.records.run_file import load_run, run_to_json
from decoding.records.trace import Run

from .opened import JOBS, Sandbox
from .player.payload import Origin

MAX_UPLOAD_BYTES = 40 * 2**20
KEEP = 200  # runs kept on disk while the page runs
KEEP_BYTES = 400 * 2**20  # in total
WARM = 4  # runs kept in memory
OPENED = "opened-"  # prefix of the ids of opened files
MAX_FRAGMENT_CHARS = 32_000  # all browsers open such links, and most programs send them whole
DAYS = 30  # for which a run that a link names is kept
SHARED_BYTES = 400 * 2**20  # of all of them; the oldest go first

T = TypeVar("T")


class Newest(Generic[T]):
    """The ``most`` values that were kept or asked for last, by name."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._kept: OrderedDict[str, T] = OrderedDict()

    def keep(self, name: str, value: T) -> None:
        with self._lock:
            self._kept[name] = value
            self._kept.move_to_end(name)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def get(self, name: Any) -> T | None:
        """The value of that name, which may be anything; None if it is not kept, or no longer."""
        with self._lock:
            if not isinstance(name, str) or name not in self._kept:
                return None
            self._kept.move_to_end(name)
            return self._kept[name]

    def forget(self, name: str) -> None:
        with self._lock:
            self._kept.pop(name, None)


class Shelf:
    """Run files in a folder, by the runs' ids. Those kept longest ago go first where there are more than ``most``, or
    their total size is larger than ``most_bytes``; all go after so many ``days``.
    """

    def __init__(self, folder: Path, most_bytes: int, most: float = math.inf, days: float = math.inf) -> None:
        self._folder, self._most_bytes, self._most, self._most_s = folder, most_bytes, most, days * 86_400

    def path(self, identifier: str) -> Path | None:
        """The file of that run; None if it is not kept, or no longer."""
        path = self._folder / f"{identifier}.json"
        return path if time.time() - _kept_at(path) < self._most_s else None

    def keep(self, identifier: str, text: str) -> list[str]:
        """Keeps a run file; returns the ids of those that go. Raises UserError."""
        path, now = self._folder / f"{identifier}.json", time.time_ns()
        with explained("This page cannot keep the run"):
            write_whole(path, text)
            with suppress(FileNotFoundError):  # another process has just removed it
                os.utime(path, ns=(now, now))  # files that are kept soon after another would else have the same time
            return self._tidied()

    def _tidied(self) -> list[str]:
        gone, total, oldest = [], 0, time.time() - self._most_s
        for number, path in enumerate(sorted(self._folder.glob("*.json"), key=_kept_at, reverse=True)):
            with suppress(FileNotFoundError):  # another process has just removed it
                total += path.stat().st_size
                if number >= self._most or total > self._most_bytes or _kept_at(path) <= oldest:
                    path.unlink()
                    gone.append(path.stem)
        return gone


def _kept_at(path: Path) -> float:
    """When the file was kept, in seconds; infinitely long ago if it is not there."""
    try:
        return path.stat().st_mtime_ns / 1e9
    except FileNotFoundError:
        return -math.inf


class RunStore:
    """Runs by id. Those made here are in a temporary folder, so that memory use stays constant; those that links name
    are still there when the page is started again.
    """

    def __init__(self, recorded: RecordedBackend) -> None:
        self._recorded = recorded, RecordedBackend(OF_LESSONS)
        self.sandbox = Sandbox()
        self._folder = ProcessFolder("speculoscope-runs-")
        self.made = Shelf(Path(self._folder.name), KEEP_BYTES, most=KEEP)  # or opened
        self.shared = Shelf(cache_folder() / "shared-runs", SHARED_BYTES, days=DAYS)
        self._warm: Newest[Run] = Newest(WARM)

    def add(self, run: Run) -> None:
        """Keeps ``run``, unless it is a recording, as a page that runs nothing live answers. Raises UserError."""
        if all(run.id != info.id for info in self.recordings()):
            self.keep(run.id, run_to_json(run))
            self._warm.keep(run.id, run)

    def keep(self, identifier: str, text: str) -> None:
        """Keeps a checked run file, also where links lead that were given to an earlier version of it. Raises
        UserError.
        """
        for gone in self.made.keep(identifier, text):
            self._warm.forget(gone)
        if self.shared.path(identifier):
            self.shared.keep(identifier, text)

    def open(self, kind: str, text: Any) -> Any:
        """Keeps a visitor's run file under a new name; gives what :meth:`drawn` gives of it. Raises UserError."""
        text, name = check_text(text), f"{OPENED}{new_id()}"
        answer = self.sandbox.do(kind, text, name)
        self.keep(name, text)
        return answer

    def recordings(self) -> list[RecordingInfo]:
        """The recordings of the showcase, then those that only lessons show."""
        return [info for backend in self._recorded for info in backend.recordings()]

    def payload(self, kind: str, identifier: Any) -> dict[str, Any]:
        """The data of a run for the race ("payload") or the Learn tab ("learn"), with what its recording's entry says.

        Raises UserError.
        """
        info = next((one for one in self.recordings() if one.id == identifier), None)
        if info is None:
            return self.drawn(kind, identifier)
        noticed = {"shows": info.shows, "point": info.point}  # by the race, whose first sentence may be on another lane
        return self.drawn(kind, identifier, **(noticed if kind == "payload" else {"title": info.title}))

    def drawn(self, kind: str, identifier: Any, **more: Any) -> Any:
        """What job ``kind`` (a key of JOBS) with the options ``more`` makes of a run. Raises UserError.

        A run that a visitor opened is untrusted: another process works on it, without ``more``.
        """
        run = self.get(identifier)
        origin = self.origin(run.id)
        if origin == "imported":
            return self.sandbox.do(kind, self._text(run.id), run.id)
        return JOBS[kind](run, **{"origin": origin, **more})

    def _text(self, identifier: str) -> str:
        path = self._file(identifier)
        with suppress(FileNotFoundError):  # it has just been removed
            if path:
                return path.read_text(encoding="utf-8")
        raise UserError(_gone(identifier))

    def get(self, identifier: str) -> Run:
        """The run of that id. Raises UserError."""
        if not isinstance(identifier, str) or not IDENTIFIER.fullmatch(identifier):
            raise UserError("This is not the name of a run: names consist of at most 64 letters, digits, - and _.")
        if run := self._warm.get(identifier):
            return run
        path = self._file(identifier)
        try:
            run = replace(load_run(path), id=identifier) if path else self._recording(identifier)
        except UserError as error:
            raise UserError(f"{_gone(identifier)} ({error})") from error
        self._warm.keep(identifier, run)
        return run

    def origin(self, identifier: str) -> Origin:
        """The origin of the run with that id."""
        if identifier.startswith(OPENED):
            return "imported"
        return "live" if self._file(identifier) else "recorded"

    def link(self, run: Run, t: Any = 0.0) -> str:
        """The end of a link that opens ``run`` at the moment ``t``: a recording by name, a small run made here by its
        content, a larger one by its name until a date. Raises UserError.
        """
        moment = t if isinstance(t, int | float) and 0 <= t < 1e6 else 0.0
        at = f"t={math.ceil(1000 * moment) / 1000:.3f}"  # of the end not the moment before
        if self.origin(run.id) == "recorded":
            return f"?run={run.id}&{at}"
        if packed := fragment(run):
            return f"?{at}{packed}"
        self.shared.keep(run.id, run_to_json(run))
        return f"?run={run.id}&{at}&until={(datetime.now(timezone.utc) + timedelta(days=DAYS)).date()}"

    def _file(self, identifier: str) -> Path | None:
        """The file of a run made or opened here, of this start of the page or shared by an earlier one."""
        return self.made.path(identifier) or self.shared.path(identifier)

    def _recording(self, identifier: str) -> Run:
        showcase, of_lessons = self._recorded
        is_of_lessons = any(info.id == identifier for info in of_lessons.recordings())
        return (of_lessons if is_of_lessons else showcase).load(identifier)


def check_text(text: Any) -> str:
    """``text``, if it can be a run file. Raises UserError."""
    try:
        size = len(text.encode())
    except (AttributeError, UnicodeEncodeError):  # not a text, or half of a character in it
        raise UserError("This is not a text file: open a run file (JSON).") from None
    if size > MAX_UPLOAD_BYTES:
        raise UserError(f"This file is larger than {MAX_UPLOAD_BYTES // 2**20} MB, the limit of this page.")
    return text


def _gone(identifier: str) -> str:
    return f"The run {identifier} is not, or no longer, kept here: run it again, or open its file."


def fragment(run: Run) -> str:
    """``run`` as the part of a link after "#", which browsers do not send to servers; "" if it is too long for one."""
    packed = base64.urlsafe_b64encode(zlib.compress(run_to_json(run).encode(), 9)).decode().rstrip("=")
    return f"#run={packed}" if len(packed) <= MAX_FRAGMENT_CHARS else ""
