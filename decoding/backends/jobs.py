"""The jobs that the process with the models can do; the last pair used stays loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..events import Event, Kind
from ..request import request_from_dict
from .base import guarded

if TYPE_CHECKING:
    from ..models.pair import Pair

Cancel = Callable[[], bool]
Told = Iterator[tuple[Kind, dict[str, Any]]]


class Cancelled(Exception):
    """Stop was asked for while a pair was loading."""


class Jobs:
    """Runs a job and tells ``(kind, data)`` pairs, the last one ``finished``, ``cancelled`` or ``failed``.

    Imports torch only when a job needs it. ``device`` as in :func:`decoding.models.pair.load_pair`.
    """

    def __init__(self, device: str = "auto") -> None:
        self._device = device
        self._key: tuple[str, ...] | None = None
        self._pair: Pair | None = None

    def run(self, kind: str, options: dict[str, Any], run_id: str, cancel: Cancel) -> Told:
        job = {"compare": self._compare, "evaluate": self._evaluate, "drafts": self._drafts}.get(kind)
        if job is None:
            yield "failed", {"message": f"There is no job '{kind[:40]}': compare, evaluate and drafts exist."}
            return
        try:
            yield from guarded(lambda: job(options, run_id, cancel))
        except Cancelled:
            yield "cancelled", {}

    def load(self, name: str, target: str, draft: str, dtype: str, tell: Callable[[str, float | None], None]) -> Pair:
        """The pair asked for, from memory if it was the last one. Raises UserError."""
        from ..models.pair import load_pair

        key = (name, target, draft, dtype)
        if self._pair is None or key != self._key:
            self._pair = self._key = None  # frees the memory of the last pair before the next one takes its own
            self._pair = load_pair(name, target, draft, dtype, device=self._device, progress=tell)
            self._key = key
        return self._pair
