"""Loads a pair in a separate thread, so that a long download can report progress and be stopped."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from typing import TYPE_CHECKING

from ..errors import Cancelled

if TYPE_CHECKING:
    from ..engines.pair import Pair

POLL_S = 0.05

Key = tuple[str, str, str, str]  # pair, target, draft, number format


class Loading:
    """Begins immediately. ``progress``: a queue of (message, share done or None), with None at the end."""

    def __init__(self, key: Key, device: str) -> None:
        from ..engines.pair import load_pair

        self.key = key
        self.cancelled: Callable[[], bool] = lambda: False
        self.progress: queue.SimpleQueue[tuple[str, float | None] | None] = queue.SimpleQueue()
        self.progress.put(("Loading the models", None))
        pool = ThreadPoolExecutor(1, thread_name_prefix="loading")
        self._future = pool.submit(load_pair, *key, device=device, progress=self._report)
        pool.shutdown(wait=False)
        self._future.add_done_callback(lambda done: self.progress.put(None))

    def _report(self, message: str, fraction: float | None) -> None:
        if self.cancelled():
            raise Cancelled
        self.progress.put((message, fraction))

    def wait(self, busy: Callable[[], bool]) -> bool:
        """Wait for the end (True), or until ``busy()`` (False)."""
        while not self._future.done():
            if busy():
                return False
            try:
                self._future.exception(timeout=POLL_S)
            except TimeoutError:
                pass
        return True

    def end(self) -> None:
        """The pair is no longer needed: loading stops at its next progress message."""
        self.cancelled = lambda: True
        self._future.exception()

    def pair(self) -> Pair:
        """The pair. Raises what loading raised."""
        return self._future.result()
