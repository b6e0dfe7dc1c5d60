"""The clock of the decode loop: the time of each iteration by phase."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter
from typing import Any, cast

import torch

DRAFT, VERIFY, POLICY, REST = range(4)
Times = tuple[float, float, float, float]  # seconds: draft, verify, policy, rest


class Clock:
    """Assigns the time since the previous lap to a phase, so that no time is lost or counted twice; by the processor's
    monotonic clock.
    """

    def begin(self) -> None:
        """Starts an iteration."""
        self._spans = [0.0, 0.0, 0.0, 0.0]
        self._last = perf_counter()

    def lap(self, phase: int) -> None:
        """Assigns the time since the last lap to ``phase``."""
        now = perf_counter()
        self._spans[phase] += now - self._last
        self._last = now

    def end(self) -> Times:
        """Ends the iteration; the remaining time counts as rest."""
        self.lap(REST)
        return cast(Times, tuple(self._spans))


class CudaClock(Clock):
    """Records CUDA events on ``device`` and waits once per iteration, at its end, when the host has already read the
    result. Events are reused: creating one takes as long as recording it.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._events: list[tuple[int, Any]] = []
        self._spare: list[Any] = []

    def begin(self) -> None:
        self._events = []
        self.lap(REST)

    def lap(self, phase: int) -> None:
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._events.append((phase, event))

    def end(self) -> Times:
        self.lap(REST)
        self._events[-1][1].synchronize()
        spans = [0.0, 0.0, 0.0, 0.0]
        for (_, before), (phase, event) in pairwise(self._events):
            spans[phase] += before.elapsed_time(event) / 1000.0
        self._spare += [event for _, event in self._events]
        return cast(Times, tuple(spans))


def wait_for(device: str) -> None:
    """Waits until ``device`` has done its work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def make_clock(device: str) -> Clock:
    """The clock for models on ``device`` ("cpu", "cuda", "cuda:1")."""
    return CudaClock(device) if device.startswith("cuda") else Clock()
