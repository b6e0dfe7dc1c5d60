"""What trials found (number formats, thread counts), kept next to the cost curves, per model and machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from ..files import costs_folder, digest_of, write_whole
from ..records.machine import describe_machine
from ..records.trace import Machine, ModelInfo
from .base import CachedModel
from .threads import choose_threads, fixed_threads, thread_choices

log = logging.getLogger(__name__)

T = TypeVar("T")
MAX_AGE = timedelta(days=7)
Choice = int | str
Outcome = tuple[Choice, dict[str, float]]  # what a trial chose, and its seconds by choice


@dataclass(slots=True)
class Trial:
    """The conditions and the result of a trial. ``rows``: of its passes; ``found``: ISO 8601, UTC; ``seconds``: of a
    pass over one token, by choice, where they are kept.
    """

    model: ModelInfo
    machine: Machine
    choices: tuple[Choice, ...]
    rows: tuple[int, ...]
    chosen: Choice
    found: str
    seconds: dict[str, float] = field(default_factory=dict)


_ADAPTER = TypeAdapter(Trial)


def read_kept(adapter: TypeAdapter[T], path: Path) -> T | None:
    """What was measured and kept in ``path``; None if nothing is there, or nothing sound."""
    try:
        return adapter.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        log.warning("%s cannot be read and is measured again: %s", path.name, str(error)[:200])
        return None


def keep(adapter: TypeAdapter[T], path: Path, record: T) -> None:
    """Keeps ``record`` in ``path``. If that fails, it is measured again at the next start."""
    try:
        write_whole(path, adapter.dump_json(record, by_alias=True))
    except OSError as error:
        log.warning("%s could not be kept: %s", path.name, error)


def now() -> str:
    """The date of what is measured now."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def age_of(date: str | None) -> timedelta:
    """The age of what was measured at ``date``; a date in the future, or that cannot be read, counts as very old."""
    try:
        age = datetime.now(timezone.utc) - datetime.fromisoformat(date or "")
    except (ValueError, TypeError):
        return timedelta.max
    return age if age >= timedelta() else timedelta.max


def usual(
    kind: str,
    model: ModelInfo,
    choices: tuple[Choice, ...],
    rows: tuple[int, ...],
    trial: Callable[[], Outcome],
    anew: bool = False,
) -> Choice:
    """What was kept for ``model`` on this machine, else what ``trial`` finds, which is then kept. ``kind`` ("threads",
    "format") and ``choices`` say what is chosen; ``rows``: of a trial's passes; ``anew``: whatever was kept.
    """
    kept = None if anew else _read(kind, model, choices, rows)
    if kept is not None and age_of(kept.found) <= MAX_AGE:
        return kept.chosen
    chosen, seconds = trial()
    found = Trial(model, describe_machine(), choices, rows, chosen, now(), seconds)
    keep(_ADAPTER, _path(kind, model, choices, rows), found)
    return chosen


def usual_threads(model: CachedModel, rows: tuple[int, ...], anew: bool = False) -> int:
    """The number kept for ``model`` on this machine, else the best one by trial, which is then kept."""
    return int(usual("threads", _alike(model), thread_choices(), rows, lambda: (choose_threads(model, rows), {}), anew))


def try_again(model: CachedModel, rows: tuple[int, ...]) -> None:
    """Sets ``model`` to the number of threads that a new trial finds for passes of ``rows``; no effect if its number is
    not from a trial.

    A trial may be another process's, on the same machine: it says nothing where OMP_NUM_THREADS fixes the number.
    """
    if _read("threads", _alike(model), thread_choices(), rows) is None or fixed_threads(None) is not None:
        return
    threads = usual_threads(model, rows, anew=True)
    if threads != model.info.threads:
        model.set_threads(threads)


def _read(kind: str, model: ModelInfo, choices: tuple[Choice, ...], rows: tuple[int, ...]) -> Trial | None:
    kept = read_kept(_ADAPTER, _path(kind, model, choices, rows))
    return kept if kept is not None and kept.chosen in choices else None


def _path(kind: str, model: ModelInfo, choices: tuple[Choice, ...], rows: tuple[int, ...]) -> Path:
    setting = repr((model, describe_machine(), choices, rows))
    return costs_folder() / f"{kind}-{digest_of(setting.encode())}.json"


def _alike(model: CachedModel) -> ModelInfo:
    """Identifies the model, independently of its current number of threads."""
    return replace(model.info, threads=0)
