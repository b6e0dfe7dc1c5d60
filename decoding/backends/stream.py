"""The events of a run on their way to readers that may come late, break off, and come again."""

from __future__ import annotations

import asyncio
import contextvars
import math
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import Generic, TypeVar

import anyio

from ..records.events import Event

Item = TypeVar("Item")


class EventStream(Generic[Item]):
    """The numbered events of one run, from a thread that makes them to readers in the event loop.

    A reader follows the events from a number on, as often as it likes, so a broken connection loses nothing: all
    events are kept until :meth:`close`, and no reader holds the run up. ``encode`` makes of each event what readers
    get, in the run's thread. The run begins at once; setting ``cancel`` ends it.

    All methods are for the event loop in which the stream was made, and all that has come changes in it alone.
    """

    def __init__(
        self,
        run: str,
        events: Callable[[threading.Event], Iterator[Event]],
        encode: Callable[[Event], Item],
    ) -> None:
        self.run = run
        self.cancel = threading.Event()
        self.ended = False  # the last event has come
        self.over = asyncio.Event()  # the thread that makes the events has ended
        self._closed = False
        self._events, self._encode = events, encode
        self._kept: list[Item] = []
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        context = contextvars.copy_context()  # ZeroGPU finds the visitor, whose quota is used, in the context
        threading.Thread(target=context.run, args=(self._fill,), name=f"run-{run}", daemon=True).start()

    @property
    def next(self) -> int:
        """The number of the next event to come."""
        return len(self._kept)

    def kept(self, start: int, end: int | None = None) -> list[Item]:
        """The events from number ``start`` to before ``end`` that have come."""
        return self._kept[start:end]

    async def follow(self, start: int = 0, wait_s: float = math.inf) -> AsyncIterator[list[Item]]:
        """What has come from number ``start`` on, again and again as more comes, to the end of the run or until the
        stream is closed; an empty list whenever nothing came for ``wait_s`` seconds.
        """
        while True:
            # asyncio.wait_for of Python 3.11 and before may swallow the reader's own cancellation when an event comes
            # at the same moment, and the run would go on for nobody
            with anyio.move_on_after(wait_s):
                while not self.kept(start):
                    if self.ended or self._closed:
                        return
                    await self._news.wait()
            found = self.kept(start)
            yield found
            start += len(found)

    def close(self) -> None:
        """Ends the run, and keeps nothing more."""
        self.cancel.set()
        self._closed = True
        self._kept.clear()
        self._tell()

    def _fill(self) -> None:
        try:
            for event in self._events(self.cancel):
                if not self._call(partial(self._add, self._encode(event), event.is_last)):
                    self.cancel.set()
                    return
        finally:
            self._call(self.over.set)

    def _call(self, act: Callable[[], None]) -> bool:
        """Has the event loop call ``act``; False if it has closed, because the server is shutting down."""
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:
            return False
        return True

    def _add(self, item: Item, is_last: bool) -> None:
        if not self._closed:
            self._kept.append(item)
        self.ended = self.ended or is_last
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def apart(items: Callable[[], Iterable[Item]], name: str, poll_s: float) -> Iterator[list[Item]]:
    """Reads the items in a thread of that name, since waiting for them would block: a list of one as each comes, and an
    empty one whenever none came for ``poll_s``. Raises what reading them raised.
    """
    arrived: queue.SimpleQueue[list[Item] | BaseException | None] = queue.SimpleQueue()

    def read() -> None:
        try:
            for item in items():
                arrived.put([item])
            arrived.put(None)
        except BaseException as error:  # also asyncio.CancelledError: Ray ends calls with it
            arrived.put(error)

    threading.Thread(target=read, name=name, daemon=True).start()
    while True:
        try:
            came = arrived.get(timeout=poll_s)
        except queue.Empty:
            came = []
        if came is None:
            return
        if isinstance(came, BaseException):
            raise came
        yield came
