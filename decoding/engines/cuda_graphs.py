"""CUDA graphs: record a function once, then launch all its kernels with one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

import torch

from ..errors import first_line

_WARM_UP = 3  # runs before recording, in which libraries create handles and choose kernels
_ONE_AT_A_TIME = threading.Lock()  # torch allows one recording in a process (torch.cuda.graph)


class GraphRunner:
    """Runs functions that read and write fixed buffers only, as CUDA graphs if possible.

    There is one graph per key, recorded at its first use; all share one stream and one memory pool, since they never
    run at once. A graph's output is valid until the next launch of any graph: copy what must last longer. Recording is
    thread-local, so that other threads (a page's server) may use CUDA meanwhile. If recording fails, everything runs
    eagerly from then on and ``note`` says so; on other devices nothing is recorded.

    cuBLAS keeps one workspace per stream, whose address is part of a recording. Clearing these workspaces (as
    torch.compile does for its own graphs) would release the memory while replays still write to it. They are therefore
    cleared before and after each recording, so that its workspace is in the graphs' own pool (as in
    torch/_inductor/cudagraph_trees.py).
    """

    def __init__(self, device: torch.device, record: bool = True) -> None:
        self.device = device
        self.records = record and device.type == "cuda"
        self.note: str | None = None
        self._graphs: dict[Hashable, tuple[Any, Any]] = {}
        self._stream: Any = None
        self._pool: Any = None

    def run(self, key: Hashable, function: Callable[[], Any]) -> Any:
        """Returns the result of ``function()``, which must do the same work for the same ``key``."""
        if not self.records:
            return function()
        if key not in self._graphs:
            try:
                with _ONE_AT_A_TIME, torch.cuda.device(self.device):  # a thread's current device may differ
                    self._graphs[key] = self._record(function)
            except RuntimeError as error:
                self._give_up(error)
                return function()
        graph, result = self._graphs[key]
        graph.replay()
        return result

    def _record(self, function: Callable[[], Any]) -> tuple[Any, Any]:
        """Warms up and records on one stream, so that libraries finish their setup before the recording."""
        if self._stream is None:
            self._stream, self._pool = torch.cuda.Stream(self.device), torch.cuda.graph_pool_handle()
        stream, before = self._stream, torch.cuda.current_stream(self.device)
        stream.wait_stream(before)
        try:
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    function()
            before.wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            torch._C._cuda_clearCublasWorkspaces()
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                result = function()
        finally:
            torch.cuda.set_stream(before)  # a failed recording would leave its own stream set
            torch._C._cuda_clearCublasWorkspaces()
        return graph, result

    def _give_up(self, error: RuntimeError) -> None:
        self.records = False
        self._graphs.clear()
        why = first_line(error)
        self.note = f"CUDA graphs could not be recorded here, so passes run eagerly, which is slower: {why}"
