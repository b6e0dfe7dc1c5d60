"""CUDA without a GPU: streams, events and above all graphs that record and replay, on CPU tensors.

A recording notes every operation with the very tensors and numbers that it was given, and a replay does the same
operations into the same tensors. So a length, a place or a threshold that was baked into a graph, a buffer that moved,
or a result that is kept too long becomes visible as a wrong text. What recordings forbid raises as on a GPU.
"""

from __future__ import annotations

from contextlib import contextmanager
from time import perf_counter
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from decoding.engines import compiled

# They copy a number to the host, derive a shape from data, or copy new data to the device.
FORBIDDEN = (
    "aten.item",
    "aten._local_scalar_dense",
    "aten.nonzero",
    "aten.masked_select",
    "aten.unique",
    "aten.is_nonzero",
    "aten.equal",
    "aten.lift_fresh",
    "aten.repeat_interleave.Tensor",
    "aten.index.Tensor",
    "aten.bincount",
)


def tensors_in(tree) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def is_new(tensor: torch.Tensor, given) -> bool:
    """Whether ``tensor`` has its own memory: it is neither ``given`` itself nor a view of it."""
    return tensor.untyped_storage().data_ptr() not in {one.untyped_storage().data_ptr() for one in tensors_in(given)}


class Recording(TorchDispatchMode):
    def __init__(self, work: list) -> None:
        super().__init__()
        self.work = work

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if str(func).startswith(FORBIDDEN):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        out = func(*args, **kwargs)
        kept = [one if is_new(one, (args, kwargs)) else None for one in tensors_in(out)]
        self.work.append((func, args, kwargs, kept))
        return out


class FakeGraph:
    """A CUDA graph: ``replay`` repeats the recorded work, and overwrites what other graphs of its pool returned."""

    def __init__(self) -> None:
        self.work: list = []
        self.replays = 0
        self.pool: list[FakeGraph] = []
        self.whole = True  # nothing has run since that could have reused its memory

    def replay(self) -> None:
        self.replays += 1
        with torch.inference_mode(), torch._C.DisableTorchFunction():  # what replays creates nothing on CUDA
            for other in self.pool:
                if other is not self and other.whole:
                    other.spoil()
            self.whole = True
            for func, args, kwargs, kept in self.work:
                again = tensors_in(func(*args, **kwargs))
                for tensor, new in zip(kept, again):
                    if tensor is not None:
                        tensor.copy_(new)

    def spoil(self) -> None:
        """All memory of the recording may be scratch memory of another graph."""
        self.whole = False
        for *_, kept in self.work:
            for tensor in kept:
                if tensor is not None:
                    tensor.fill_(float("nan") if tensor.is_floating_point() else 1)


# What is replaced in torch.cuda.
STREAMS = ("Stream", "current_stream", "set_stream", "stream", "device", "Event")
REPLACED = (*STREAMS, "graph_pool_handle", "CUDAGraph", "graph", "synchronize", "get_device_name", "is_initialized")


class FakeCuda:
    """Stands in for ``torch.cuda``; ``graphs`` are the recorded graphs, ``current`` is the current stream."""

    def __init__(self) -> None:
        self.graphs: list[FakeGraph] = []
        self.events = self.waits = 0
        self.workspaces = 0  # that are outside the graphs' pools
        self.fail: RuntimeError | None = None  # raised at the end of a recording, as by CUDA
        self.default = self.current = self.Stream()
        self.lost = False  # a fault after which CUDA refuses everything
        self._pools: dict[object, list[FakeGraph]] = {}

    def Stream(self, device=None):
        return SimpleNamespace(wait_stream=lambda other: None)

    def current_stream(self, device=None):
        return self.current

    def set_stream(self, stream) -> None:
        self.current = stream

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        self.workspaces += 1  # cuBLAS allocates one for the products that run there
        yield
        self.current = before

    @contextmanager
    def device(self, device):
        yield

    def graph_pool_handle(self):
        handle = object()
        self._pools[handle] = []
        return handle

    CUDAGraph = FakeGraph

    @contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        assert capture_error_mode == "thread_local" and stream is not self.default
        assert not self.workspaces, "a recording would hold the address of a workspace that others may clear"
        self.current = stream  # as in torch: not restored if the recording fails
        with Recording(graph.work):
            yield
        if self.fail:
            raise self.fail
        self.current = self.default
        graph.pool = self._pools[pool]
        graph.pool.append(graph)
        self.graphs.append(graph)

    def synchronize(self, device=None) -> None:
        self.waits += 1
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def is_initialized(self) -> bool:
        return True

    def clear_workspaces(self) -> None:
        self.workspaces = 0

    def get_device_name(self, device=None) -> str:
        return "a stand-in for a GPU"

    def Event(self, enable_timing):
        assert enable_timing
        self.events += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda, self._at, self._waited = cuda, None, False

    def record(self, stream) -> None:
        assert stream is self._cuda.default, "the work of a run goes to one stream"
        self._at = perf_counter()

    def synchronize(self) -> None:
        self._waited = True

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self._at is not None and end._at is not None
        return (end._at - self._at) * 1e3


@contextmanager
def fake_cuda(monkeypatch):
    """Replaces the streams, graphs and events of ``torch.cuda`` with a FakeCuda."""
    monkeypatch.setattr(compiled, "_made", lambda *_: None)  # graphs record torch's operations only
    cuda = FakeCuda()
    for name in REPLACED:
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", cuda.clear_workspaces, raising=False)
    yield cuda


def recording(model):
    """``model`` with graphs, as on a GPU."""
    model._runner.records = True
    model.info.engine = "cuda-graphs"
    return model


class OnTheCpu(TorchFunctionMode):
    """Creates on the CPU what CUDA would create. ``fills``: for each copy from pinned memory, whether it is async."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned: dict[int, torch.Tensor] = {}  # by id, which stays theirs because they are kept
        self.fills: list[bool] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.device:  # only a name; tensors are created on the CPU
            return func(*args, **(kwargs or {}))
        kwargs = {name: _here(value) for name, value in (kwargs or {}).items()}
        pins = kwargs.pop("pin_memory", False)
        if func is torch.Tensor.copy_ and id(args[1]) in self.pinned:
            self.fills.append(kwargs.get("non_blocking", False))
        out = func(*map(_here, args), **kwargs)
        if pins:
            self.pinned[id(out)] = out
        return out


def _here(value):
    on_cuda = str(value).startswith("cuda") if isinstance(value, str | torch.device) else False
    return torch.device("cpu") if on_cuda else value


@contextmanager
def fake_gpu(monkeypatch):
    """A machine with one such GPU: models loaded on "cuda" run through the whole CUDA engine, on the CPU."""
    with fake_cuda(monkeypatch) as cuda, OnTheCpu() as cuda.memory:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (2**40, 2**40))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        yield cuda
