"""CUDA graphs: record a piece of work once, then launch all its kernels with one call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

_WARM_UP = 3  # runs before recording: libraries choose their kernels and allocate their workspaces


class GraphRunner:
    """Runs functions that read and write fixed buffers only; replays them as CUDA graphs where it can.

    One graph a key, recorded when the key is first seen, all in one memory pool (they never run at once). What a
    graph returns is overwritten by its next launch: copy what must last. Recording is thread-local, so that other
    threads (a page's server) may use CUDA meanwhile. Where recording fails, everything runs eagerly from then on and
    ``note`` says so in a sentence; on other devices nothing is ever recorded.
    """

    def __init__(self, device: torch.device, record: bool = True) -> None:
        self.device = device
        self.records = record and device.type == "cuda"
        self.note: str | None = None
        self._graphs: dict[Hashable, tuple[Any, Any]] = {}
        self._pool: Any = None

    def run(self, key: Hashable, function: Callable[[], Any]) -> Any:
        """What ``function()`` returns; ``function`` must do the same work whenever ``key`` is the same."""
        if not self.records:
            return function()
        if key not in self._graphs:
            try:
                self._graphs[key] = self._record(function)
            except RuntimeError as error:
                self._give_up(error)
                return function()
        graph, result = self._graphs[key]
        graph.replay()
        return result

    def _record(self, function: Callable[[], Any]) -> tuple[Any, Any]:
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                function()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._shared_pool(), capture_error_mode="thread_local"):
            result = function()
        return graph, result

    def _shared_pool(self) -> Any:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def _give_up(self, error: RuntimeError) -> None:
        self.records = False
        self._graphs.clear()
        reason = str(error).splitlines()[0][:150]
        self.note = f"CUDA graphs could not be recorded here, so passes run eagerly and slower: {reason}"
