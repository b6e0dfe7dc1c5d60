"""The run file as JSON: written atomically, checked when read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..errors import UserError, first_fault
from ..files import write_whole
from .events import Event
from .trace import SCHEMA, Run
from .trace_checks import check_consistent

MAX_FILE_BYTES = 16 * 2**20


def to_plain(record: Any) -> Any:
    """A dataclass as plain data with the names that its fields have in files."""
    return _adapter(record.__class__).dump_python(record, by_alias=True)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def run_to_json(run: Run) -> str:
    """Compact JSON of ``run``; :func:`run_from_json` returns an equal run."""
    return json.dumps(to_plain(run), ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def run_from_json(text: str | bytes) -> Run:
    """Reads and checks a run. Raises UserError with the first error."""
    if len(text) > MAX_FILE_BYTES:
        raise UserError(f"This run file is larger than {MAX_FILE_BYTES // 2**20} MB, the limit.")
    try:
        run = _adapter(Run).validate_json(text)
    except (ValidationError, RecursionError) as error:
        raise UserError(f"This is not a Speculoscope run file of schema {SCHEMA}: {first_fault(error)}") from error
    check_consistent(run)
    return run


def run_from_dict(data: Any) -> Run:
    """Reads and checks the run in an event's data. Raises UserError."""
    return run_from_json(json.dumps(data))  # the strict types of a run file are those of JSON: its keys are text


def run_of_events(events: Iterable[Event]) -> Run | None:
    """The run with which ``events`` end; None if it was stopped. Raises UserError with the sentence of a failure."""
    for event in events:
        if event.kind == "failed":
            raise UserError(event.data["message"])
        if event.kind == "finished":
            return run_from_dict(event.data["run"])
    return None


def load_run(path: str | Path) -> Run:
    """Reads and checks the run file at ``path``. Raises UserError."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"{path.name} is larger than {MAX_FILE_BYTES // 2**20} MB, the limit.")
        return run_from_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"Cannot read the run file {path.name}: {error.strerror or error}.") from error


def save_run(run: Run, path: str | Path) -> None:
    """Writes ``run`` to ``path`` atomically. Raises UserError."""
    path = Path(path)
    try:
        write_whole(path, run_to_json(run))
    except OSError as error:
        raise UserError(f"Cannot write the run file {path}: {error.strerror or error}.") from error
