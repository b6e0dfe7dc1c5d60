"""Recorded runs, which are shown without a model."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from ..errors import UserError
from ..files import write_whole
from ..records.events import IDENTIFIER
from ..records.request import CompareRequest
from ..records.run_file import load_run, run_to_json
from ..records.trace import Run
from .base import CheckedBackend, JobEvents

if TYPE_CHECKING:
    from ..records.pairs import PairDescription

log = logging.getLogger(__name__)

RECORDINGS = Path(__file__).resolve().parent.parent.parent / "recordings"
INDEX = "index.json"
NOTHING_LIVE = "Only recorded results are shown here: start the program without --recorded to measure new ones."


@dataclass(slots=True)
class RecordingInfo:
    """An entry of a list of recordings; ``shows`` says in one line what to look for."""

    id: str
    title: str
    shows: str
    prompt: str
    pair: str
    fingerprints: dict[str, str]  # model name -> fingerprint of the weights that made it
    created: str  # ISO 8601, UTC
    machine: str
    dtype: str
    lanes: list[str] = field(default_factory=list)
    point: str = ""  # the lane of its first sentence; "": the fastest


_INDEX = TypeAdapter(list[RecordingInfo])


def describe_recording(run: Run, title: str = "", shows: str = "") -> RecordingInfo:
    """The list entry of ``run``; without a title its prompt's first line serves as one."""
    first_line = next((line.strip() for line in run.settings.prompt.splitlines() if line.strip()), run.id)
    models = {"target": run.pair.target, **run.pair.drafts}
    return RecordingInfo(
        id=run.id,
        title=title or first_line[:80],
        shows=shows,
        prompt=run.settings.prompt,
        pair=run.pair.name,
        fingerprints={name: model.fingerprint for name, model in models.items()},
        created=run.created,
        machine=run.machine.gpu or run.machine.processor,
        dtype=run.pair.target.dtype,
        lanes=[trace.lane for trace in run.lanes],
    )


class RecordedBackend(CheckedBackend):
    """The run files of one folder. Its ``index.json`` has order and titles; unlisted files come last."""

    name = "recorded"
    live = False
    only_comparisons = NOTHING_LIVE

    def __init__(self, folder: str | Path = RECORDINGS) -> None:
        super().__init__()
        self._folder = Path(folder)
        self._infos: list[RecordingInfo] | None = None
        self._reading = threading.Lock()

    def recordings(self) -> list[RecordingInfo]:
        """All readable recordings, in display order."""
        with self._reading:
            if self._infos is None:
                self._infos = self._list()
            return list(self._infos)

    def load(self, identifier: str) -> Run:
        """The recorded run of that id. Raises UserError."""
        known = IDENTIFIER.fullmatch(identifier) and f"{identifier}.json" != INDEX
        if not known or not self._path(identifier).is_file():
            names = ", ".join(info.id for info in self.recordings()) or "none"
            raise UserError(f"There is no recording '{identifier[:64]}'. There are: {names}.")
        return self._read(identifier)

    def _check(self, request: CompareRequest) -> CompareRequest:
        self._find(request)
        return request

    def _run(self, kind: str, options: dict[str, Any], cancel: threading.Event, run: str) -> JobEvents:
        """The recording with exactly these settings."""
        found = self._find(CompareRequest(**options))
        settings = asdict(found.settings)
        yield "queued", {"place": 0}
        yield "started", {"settings": settings, "pair": asdict(found.pair), "lanes": settings["lanes"]}
        yield "finished", {"run": json.loads(run_to_json(found))}

    def pairs(self) -> list[PairDescription]:
        from ..records.pairs import describe_pairs

        return describe_pairs()

    def status(self) -> str:
        return f"Shows {len(self.recordings())} recorded runs; nothing runs live."

    def _find(self, request: CompareRequest) -> Run:
        for info in self.recordings():
            if info.prompt == request.prompt and info.lanes == request.lanes:
                run = self.load(info.id)
                if run.settings == request:
                    return run
        raise UserError(
            "Only recorded runs are shown here, and none has these settings: choose one of the recordings, "
            "or start the program on your own machine to run it."
        )

    def _path(self, identifier: str) -> Path:
        return self._folder / f"{identifier}.json"

    def _read(self, identifier: str) -> Run:
        try:
            run = load_run(self._path(identifier))
        except UserError as error:
            again = "Record it again with python -m decoding recordings."
            raise UserError(f"The recording {identifier} cannot be shown. {error} {again}") from error
        run.id = identifier  # requests use the file's name
        return run

    def _list(self) -> list[RecordingInfo]:
        there = {path.stem for path in self._folder.glob("*.json") if path.name != INDEX}
        listed = [info for info in self._readable(read_index, self._folder) or [] if info.id in there]
        rest = sorted(there - {info.id for info in listed})
        runs = [self._readable(self._read, name) for name in rest if IDENTIFIER.fullmatch(name)]
        return listed + [describe_recording(run) for run in runs if run is not None]

    def _readable(self, read: Callable[[Any], Any], what: Any) -> Any:
        """The readable ones of several files: one broken file must not hide the others."""
        try:
            return read(what)
        except UserError as error:
            log.warning("%s", error)
            return None


def read_index(folder: Path) -> list[RecordingInfo]:
    """The list in ``folder``; empty if there is none. Raises UserError if it is broken."""
    try:
        return _INDEX.validate_json((folder / INDEX).read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValidationError) as error:
        raise UserError(
            f"{folder.name}/{INDEX} is broken: write it again with python -m decoding recordings."
        ) from error


def write_index(folder: Path, infos: list[RecordingInfo]) -> None:
    """Replace the list in ``folder`` whole."""
    write_whole(folder / INDEX, json.dumps([asdict(info) for info in infos], indent=1) + "\n")
