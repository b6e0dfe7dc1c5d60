"""Recorded runs, which are shown without a model, and what to record for the showcase and the lessons."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..errors import UserError
from ..files import digest_of_files, write_whole
from ..lookahead.fitted import FOLDER as POLICIES
from ..lookahead.lanes import parse_lane, stand_in
from ..records.events import IDENTIFIER, RawEvents
from ..records.pairs import PairDescription
from ..records.request import DEFAULT_LANES, CompareRequest, request_from_dict
from ..records.run_file import load_run, run_to_json, save_run
from ..records.suites import Prompt
from ..records.text import first_line
from ..records.trace import Run
from ..records.weights import fingerprint
from .base import Backend

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "recordings"
OF_LESSONS = ROOT / "lessons" / "recordings"  # runs that lessons need and the showcase does not contain
INDEX = "index.json"
MAX_BYTES = 600_000
NOTHING_LIVE = "Only recorded results are shown here. To measure new ones, start the program without --recorded."


@dataclass(slots=True)
class RecordingInfo:
    """An entry of a list of recordings; ``shows`` says in one line what to look for."""

    id: str
    title: str
    shows: str
    prompt: str
    pair: str
    lanes: list[str]
    fingerprints: dict[str, str] = field(default_factory=dict)  # of what it was made with; see :func:`fingerprints`
    point: str = ""  # the lane of its first sentence; "": the fastest


_INDEX = TypeAdapter(list[RecordingInfo])


def describe_recording(run: Run, title: str = "", shows: str = "") -> RecordingInfo:
    """The list entry of ``run``; without a title its prompt's first line serves as one."""
    lanes = [trace.lane for trace in run.lanes]
    return RecordingInfo(
        run.id, title or first_line(run.settings.prompt) or run.id, shows, run.settings.prompt, run.pair.name, lanes
    )


class RecordedBackend(Backend):
    """The run files of one folder. Its ``index.json`` has order and titles; unlisted files come last."""

    only_comparisons = NOTHING_LIVE

    def __init__(self, folder: str | Path = RECORDINGS) -> None:
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
            raise UserError(f"There is no recording '{identifier[:64]}': choose one of the examples.")
        return self._read(identifier)

    def _check(self, request: CompareRequest) -> None:
        self._find(request)

    def _run(self, kind: str, options: dict[str, Any], cancel: threading.Event, run: str) -> RawEvents:
        """The recording with exactly these settings."""
        found = self._find(CompareRequest(**options))
        settings = asdict(found.settings)
        yield "queued", {"place": 0}
        yield "started", {"settings": settings, "pair": asdict(found.pair), "lanes": settings["lanes"]}
        yield "finished", {"run": json.loads(run_to_json(found))}

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
        """What ``read`` makes of ``what``; None if that is broken, for one broken file must not hide the others."""
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


# -- what to record, and what is stale


def plan_recording(prompt: Prompt, pair: PairDescription, max_new_tokens: int, repeats: int) -> CompareRequest:
    """The comparison to record for ``prompt``, whose own settings come first, with the policies that were fitted for
    ``pair``. Raises UserError for settings that cannot run.
    """
    texts = []
    for lane in map(parse_lane, prompt.lanes or DEFAULT_LANES):
        is_there = not lane.is_learned or lane.policy in pair.fitted.get(lane.draft or pair.default_draft, ())
        texts.append(lane.text if is_there else stand_in(lane))
    settings: dict[str, Any] = {"prompt": prompt.prompt, "picture": prompt.picture, "pair": pair.name}
    settings |= {"lanes": list(dict.fromkeys(texts)), "max_new_tokens": max_new_tokens, "repeats": repeats}
    return request_from_dict(settings | prompt.settings)


def store_recording(run: Run, prompt: Prompt, pair: PairDescription, folder: Path) -> int:
    """Write ``run`` and its entry in the list, which takes the place of an older one; returns the file's bytes."""
    info = describe_recording(run, prompt.title, prompt.shows)
    info.fingerprints, info.point = fingerprints(pair, run.settings.lanes, run.settings.picture), prompt.point
    path = folder / f"{run.id}.json"
    save_run(run, path)
    others = {other.id: other for other in read_index(folder)}
    write_index(folder, list((others | {info.id: info}).values()))
    return path.stat().st_size


def order_index(folder: Path, prompts: list[Prompt]) -> None:
    """Sorts the list by ``prompts``; removes entries and files that are no longer among them."""
    infos = {info.id: info for info in read_index(folder)}
    kept = [infos.pop(prompt.id) for prompt in prompts if prompt.id in infos]
    for identifier in infos:
        (folder / f"{identifier}.json").unlink(missing_ok=True)
    write_index(folder, kept)


def fingerprints(pair: PairDescription, lanes: list[str], picture: str = "") -> dict[str, str]:
    """Fingerprints of everything on which a run of ``lanes`` on ``pair`` depends: target, drafts, fitted policies, and,
    with a ``picture``, what it shows and what reads it.
    """
    found = {"target": fingerprint(pair.target)}
    if picture:
        reader = digest_of_files(sorted(Path(pair.pictures).glob("*.safetensors")))
        found |= {"the picture": picture, "the picture reader": reader}
    for lane in map(parse_lane, lanes):
        draft = lane.draft_in(pair.default_draft)
        if draft in pair.drafts:
            found.setdefault(draft, fingerprint(pair.drafts[draft]))
            if lane.is_learned:
                found[f"{draft}/{lane.policy}"] = digest_of_files(
                    sorted((Path(pair.drafts[draft]) / POLICIES).glob(f"{lane.policy}.*"))
                )
    return found


def stale_recordings(
    folder: Path, prompts: list[Prompt], pair: PairDescription, others: list[Prompt] | None = None
) -> list[str]:
    """A sentence for each recording of ``pair`` that is missing, superfluous, or not what would be recorded today.

    ``others``: prompts whose recordings, of another pair, belong there too.
    """
    backend = RecordedBackend(folder)
    infos = {info.id: info for info in backend.recordings()}
    found = [_why_stale(prompt, infos.get(prompt.id), pair, backend) for prompt in prompts]
    known = {prompt.id for prompt in [*prompts, *(others or [])]}
    found += [f"{name}: no prompt has this id." for name in infos if name not in known]
    return [sentence for sentence in found if sentence]


def _why_stale(prompt: Prompt, info: RecordingInfo | None, pair: PairDescription, backend: RecordedBackend) -> str:
    if info is None:
        return f"{prompt.id}: not recorded."
    if (info.prompt, info.title, info.shows, info.point) != (prompt.prompt, prompt.title, prompt.shows, prompt.point):
        return f"{prompt.id}: its prompt, title or description has changed."
    lanes = plan_recording(prompt, pair, 1, 1).lanes
    if info.lanes != lanes:
        return f"{prompt.id}: recorded with {', '.join(info.lanes)}, today it would be {', '.join(lanes)}."
    if prompt.settings:
        made = backend.load(prompt.id).settings
        others = [name for name, value in prompt.settings.items() if getattr(made, name) != value]
        if others:
            return f"{prompt.id}: recorded with another {', '.join(others)}."
    now = fingerprints(pair, lanes, prompt.picture)
    changed = [name for name in {**now, **info.fingerprints} if now.get(name) != info.fingerprints.get(name)]
    return f"{prompt.id}: made with other weights of {', '.join(changed)}." if changed else ""
