"""The jobs that the process with the models can do; the last pair used stays loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..events import Kind
from ..request import CompareRequest, request_from_dict
from .base import Cancelled, guarded

if TYPE_CHECKING:
    from ..models.pair import Pair

Cancel = Callable[[], bool]
Told = Iterator[tuple[Kind, dict[str, Any]]]


class Jobs:
    """Runs a job and tells ``(kind, data)`` pairs, the last one ``finished``, ``cancelled`` or ``failed``.

    Imports torch only when a job needs it. ``device`` as in :func:`decoding.models.pair.load_pair`.
    """

    def __init__(self, device: str = "auto") -> None:
        self._device = device
        self._key: tuple[str, ...] | None = None
        self._pair: Pair | None = None

    def run(self, kind: str, options: dict[str, Any], run_id: str, cancel: Cancel) -> Told:
        job = {"compare": self._compare}.get(kind)
        if job is None:
            yield "failed", {"message": f"There is no job '{kind[:40]}'."}
            return
        yield from guarded(lambda: job(options, run_id, cancel))

    def load(self, request: CompareRequest, tell: Callable[[str, float | None], None]) -> Pair:
        """The pair asked for, from memory if it was the last one. Raises UserError."""
        from ..models.pair import load_pair

        key = (request.pair, request.target, request.draft, request.dtype)
        if self._pair is None or key != self._key:
            self._pair = self._key = None  # frees the memory of the last pair before the next one takes its own
            self._pair = load_pair(*key, device=self._device, progress=tell)
            self._key = key
        return self._pair

    def _compare(self, options: dict[str, Any], run_id: str, cancel: Cancel) -> Told:
        from ..compare import compare

        for event in compare(request_from_dict(options), load=self.load, cancel=cancel, run_id=run_id):
            yield event.kind, event.data
