"""The throughput of several replicas, compared with that of one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from ..errors import Cancelled
from ..records.request import CompareRequest
from .remote import RemoteBackend
from .soak import PATIENCE_S, SoakResult, judge


@dataclass
class Throughput(SoakResult):
    """Also the seconds until all visitors had their runs, by round; in each the two sides are measured in turn."""

    one_s: list[float] = field(default_factory=list)
    many_s: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [one / many for one, many in zip(self.one_s, self.many_s)]

    @property
    def is_clean(self) -> bool:
        return bool(self.ratios) and super().is_clean

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"ratios": self.ratios, "ratio": median(self.ratios) if self.ratios else None}


def compare_throughput(
    one: str,
    many: str,
    requests: Sequence[CompareRequest],
    rounds: int,
    cancel: threading.Event | None = None,
    on_crowd: Callable[[int], None] = lambda crowds: None,
) -> Throughput:
    """Send ``requests`` simultaneously, each from a separate visitor, to the backends ``one`` and ``many`` in turn.

    ``one``, ``many``: their addresses. Each first gets one crowd that does not count. ``on_crowd`` is called
    with how many crowds have been served. Raises Cancelled.
    """
    cancel, result = cancel or threading.Event(), Throughput()
    for number in range(2 * (1 + rounds)):
        url, seconds = (one, result.one_s) if number % 2 == 0 else (many, result.many_s)
        spent = _serve_crowd(url, requests, cancel, result)
        if cancel.is_set():
            raise Cancelled
        if number >= 2:
            seconds.append(spent)
        on_crowd(number + 1)
    return result


def _serve_crowd(url: str, requests: Sequence[CompareRequest], cancel: threading.Event, result: SoakResult) -> float:
    """Seconds until all ``requests`` were answered; the runs are judged in ``result``."""

    def visit(request: CompareRequest) -> list:
        remote = RemoteBackend(url, patience_s=PATIENCE_S)
        try:
            return list(remote.compare(request, cancel))
        finally:
            remote.close()

    with ThreadPoolExecutor(len(requests)) as pool:
        begin = perf_counter()
        answers = list(pool.map(visit, requests))
        spent = perf_counter() - begin
    for request, events in zip(requests, answers):
        judge(events, None, request, result)
    return spent
