"""Compares the time of a pass with the time that reading its bytes takes."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import quantiles
from time import perf_counter

import torch

from ..engines.base import CachedModel, DeviceModel, is_on_device
from ..engines.formats import find_format
from ..engines.pair import Pair

ROUNDS = 30  # per pass
TOGETHER = 8  # draft steps in one launch
_PROBE_BYTES = {"cpu": 2**28, "cuda": 2**31}


@dataclass(slots=True)
class PassTime:
    """One pass over one token: its time (median and quartiles), and the time to read its weights and KV cache once."""

    name: str
    ms: float
    floor_ms: float
    low_ms: float | None = None
    high_ms: float | None = None


def measure_bandwidth(device: str, rounds: int = 5) -> float:
    """Bytes per second that a large copy reads plus writes; the best of ``rounds``."""
    kind = device.split(":")[0]
    source = torch.ones(_PROBE_BYTES[kind] // 8, dtype=torch.float32, device=device)
    copy = torch.empty_like(source)
    return 2 * source.nbytes / min(_time(lambda: copy.copy_(source), device) for _ in range(rounds + 1))


def pass_times(pair: Pair, context: int, bandwidth: float) -> list[PassTime]:
    """Target and default draft, one token at context length ``context``; on CUDA also one of several
    draft steps that are planned and launched together."""
    target, draft = pair.target, pair.draft()
    measured = [("target", target, _pass_s(target, context, ROUNDS)), ("draft", draft, _pass_s(draft, context, ROUNDS))]
    if is_on_device(draft):
        measured.append(("planned draft", draft, _planned_s(draft, context, ROUNDS)))
    found = []
    for name, model, times in measured:
        low, middle, high = (1e3 * one for one in quantiles(times, method="inclusive"))
        found.append(PassTime(name, middle, floor_bytes(model, context) / bandwidth * 1e3, low, high))
    return found


def floor_bytes(model: CachedModel, context: int) -> int:
    """Bytes that a pass over one token reads: its weights (one row of the embedding), keys and values."""
    info = model.info
    rows = info.vocab_size if model.tied else 0  # of the embedding, where it serves as the head, too
    if model.tied and model.head_ids is not None:
        rows = len(model.head_ids)
    parameters = info.parameters - (info.vocab_size - rows) * info.hidden_size
    head = (rows or info.vocab_size) * info.hidden_size
    held = find_format(info.dtype)
    head_bytes = held.head_bytes if model.head_ids is None else held.reduced_head_bytes
    return int((parameters - head) * held.layer_bytes + head * head_bytes) + model.cache_bytes_per_token * context


def _pass_s(model: CachedModel, context: int, rounds: int) -> list[float]:
    text = [1] * min(context, model.max_length - 2)
    model.prefill(text)
    times = []
    for _ in range(rounds):
        times.append(_time(lambda: model.extend([1]), model.info.device))
        model.rewind(len(text))
    return times


def _planned_s(model: DeviceModel, context: int, rounds: int) -> list[float]:
    """Seconds per step of TOGETHER draft steps in one launch."""
    text = [1] * min(context, model.max_length - TOGETHER - 1)
    model.prefill(text)
    times = []
    for _ in range(rounds + 1):  # the first round records the graph
        times.append(_time(lambda: model.draft_planned([1], TOGETHER, model.vocab_size), model.info.device))
        model.rewind(len(text))
    return [spent / TOGETHER for spent in times[1:]]


def _time(work, device: str) -> float:
    _wait(device)
    before = perf_counter()
    work()
    _wait(device)
    return perf_counter() - before


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
