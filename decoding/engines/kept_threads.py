"""Thread counts found by trials, kept next to the cost curves, per loaded model and machine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ..files import costs_folder, digest_of, write_whole
from ..records.machine import describe_machine
from ..records.trace import Machine, ModelInfo
from .base import CachedModel
from .threads import choose_threads, fixed_threads, thread_choices

log = logging.getLogger(__name__)

MAX_AGE = timedelta(days=7)


@dataclass(slots=True)
class Trial:
    """The conditions and the result of a trial. ``rows``: of its passes; ``found``: ISO 8601, UTC."""

    model: ModelInfo
    machine: Machine
    choices: tuple[int, ...]
    rows: tuple[int, ...]
    threads: int
    found: str


_ADAPTER = TypeAdapter(Trial)


def usual_threads(model: CachedModel, rows: Sequence[int]) -> int:
    """The number kept for ``model`` on this machine, else the best one by trial, which is then kept."""
    kept = _read(model)
    if kept is not None and kept.rows == tuple(rows) and _age(kept) <= MAX_AGE:
        return kept.threads
    return _try(model, tuple(rows))


def try_again(model: CachedModel) -> None:
    """Sets ``model`` to the number that a new trial finds; no effect if its number does not come from a trial.

    A trial may be another process's, on the same machine: it says nothing where OMP_NUM_THREADS fixes the number.
    """
    kept = _read(model)
    if kept is None or fixed_threads(None) is not None:
        return
    threads = _try(model, kept.rows)
    if threads != model.info.threads:
        model.set_threads(threads)


def _try(model: CachedModel, rows: tuple[int, ...]) -> int:
    threads = choose_threads(model, rows)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    trial = Trial(_alike(model), describe_machine(), thread_choices(), rows, threads, now)
    try:
        write_whole(_path(model), _ADAPTER.dump_json(trial))
    except OSError as error:  # only costs the next start another trial
        log.warning("the number of threads could not be kept: %s", error)
    return threads


def _read(model: CachedModel) -> Trial | None:
    try:
        kept = _ADAPTER.validate_json(_path(model).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        log.warning("a kept number of threads cannot be read and is found again: %s", str(error)[:200])
        return None
    same = (kept.model, kept.machine, kept.choices) == (_alike(model), describe_machine(), thread_choices())
    return kept if same and kept.threads in kept.choices else None


def _path(model: CachedModel) -> Path:
    setting = repr((_alike(model), describe_machine(), thread_choices()))
    return costs_folder() / f"threads-{digest_of(setting.encode())}.json"


def _alike(model: CachedModel) -> ModelInfo:
    """Identifies the model, independently of its current number of threads."""
    return replace(model.info, threads=0)


def _age(trial: Trial) -> timedelta:
    try:
        return datetime.now(timezone.utc) - datetime.fromisoformat(trial.found)
    except (ValueError, TypeError):
        return timedelta.max
