"""CUDA graphs: record a piece of work once, then launch all its kernels with one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

import torch

_WARM_UP = 3  # runs before recording: libraries make their handles and choose their kernels
_ONE_AT_A_TIME = threading.Lock()  # torch allows one recording in a process (torch.cuda.graph)


class GraphRunner:
    """Runs functions that read and write fixed buffers only; replays them as CUDA graphs where it can.

    One graph a key, recorded when the key is first seen, all on one stream and in one memory pool (they never run at
    once). What a graph returns lasts until the next launch of any of them, whose scratch memory it may be: copy what
    must last longer. Recording is thread-local, so that other threads (a page's server) may use CUDA meanwhile. Where
    recording fails, everything runs eagerly from then on and ``note`` says so in a sentence; on other devices nothing
    is ever recorded.

    cuBLAS keeps a workspace a stream, whose address a recording holds. Whoever clears those workspaces (torch.compile
    does, for its own graphs) would give that memory to others while replays write to it. So they are cleared before
    and after each recording: its workspace then lies in the graphs' own pool (as torch/_inductor/cudagraph_trees.py).
    """

    def __init__(self, device: torch.device, record: bool = True) -> None:
        self.device = device
        self.records = record and device.type == "cuda"
        self.note: str | None = None
        self._graphs: dict[Hashable, tuple[Any, Any]] = {}
        self._stream: Any = None
        self._pool: Any = None

    def run(self, key: Hashable, function: Callable[[], Any]) -> Any:
        """What ``function()`` returns; ``function`` must do the same work whenever ``key`` is the same."""
        if not self.records:
            return function()
        if key not in self._graphs:
            try:
                with _ONE_AT_A_TIME, torch.cuda.device(self.device):  # a thread's own device may be another
                    self._graphs[key] = self._record(function)
            except RuntimeError as error:
                self._give_up(error)
                return function()
        graph, result = self._graphs[key]
        graph.replay()
        return result

    def _record(self, function: Callable[[], Any]) -> tuple[Any, Any]:
        """Warm up and record on one stream: what libraries set up once is set up before the recording."""
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
            torch.cuda.set_stream(before)  # a recording that breaks off would leave its own one in place
            torch._C._cuda_clearCublasWorkspaces()
        return graph, result

    def _give_up(self, error: RuntimeError) -> None:
        self.records = False
        self._graphs.clear()
        reason = (str(error).splitlines() or [type(error).__name__])[0][:150]
        self.note = f"CUDA graphs could not be recorded here, so passes run eagerly and slower: {reason}"
