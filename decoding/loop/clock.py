"""The clock of the decode loop: where the time of each iteration goes."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Protocol

DRAFT, CHECK, POLICY, REST = range(4)
Times = tuple[float, float, float, float]  # seconds: draft, check, policy, rest


class Clock(Protocol):
    """Laps: each gives the time since the last one to a phase, so that no time is lost or counted twice."""

    def begin(self) -> None:
        """Start an iteration."""

    def lap(self, phase: int) -> None:
        """The time since the last lap belongs to ``phase``."""

    def end(self) -> Times:
        """End the iteration; what is left belongs to the rest."""


class CpuClock:
    """Reads the processor's monotonic clock."""

    def begin(self) -> None:
        self._spans = [0.0, 0.0, 0.0, 0.0]
        self._last = perf_counter()

    def lap(self, phase: int) -> None:
        now = perf_counter()
        self._spans[phase] += now - self._last
        self._last = now

    def end(self) -> Times:
        self.lap(REST)
        return tuple(self._spans)  # type: ignore[return-value]


class CudaClock:
    """Records CUDA events on ``device`` and waits once an iteration, at its end, where the host has read the result
    anyway. Events are used again: making one takes as long as recording it.
    """

    def __init__(self, device: str = "cuda") -> None:
        import torch

        self._make = lambda: torch.cuda.Event(enable_timing=True)
        self._stream = lambda: torch.cuda.current_stream(device)
        self._events: list[tuple[int, Any]] = []
        self._spare: list[Any] = []

    def begin(self) -> None:
        self._events = []
        self.lap(REST)

    def lap(self, phase: int) -> None:
        event = self._spare.pop() if self._spare else self._make()
        event.record(self._stream())
        self._events.append((phase, event))

    def end(self) -> Times:
        self.lap(REST)
        self._events[-1][1].synchronize()
        spans = [0.0, 0.0, 0.0, 0.0]
        for (_, before), (phase, event) in zip(self._events, self._events[1:]):
            spans[phase] += before.elapsed_time(event) / 1000.0
        self._spare += [event for _, event in self._events]
        return tuple(spans)  # type: ignore[return-value]


def make_clock(device: str) -> Clock:
    """The clock for models on ``device`` ("cpu", "cuda", "cuda:1")."""
    return CudaClock(device) if device.startswith("cuda") else CpuClock()
