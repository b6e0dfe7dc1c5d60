"""Attention of the lean engine over its own KV cache, on a CPU (cuda_attention.py has that of the CUDA engine).

A row of a tree reads its keys in the order of its own text, whatever their places in the cache, so that its bits are
those of a plain pass.

``plan(start, n, branches)`` prepares what the layers of one pass share; ``attend(layer, heads, plan)`` writes the new
keys and values and returns softmax(Q K^T / sqrt(d)) V; ``move`` keeps one path of a tree. Shapes: heads [n, Hq + 2 Hkv,
d], which are the queries, the keys and the values; result [n, Hq d]. Query heads that share a key head are adjacent
(grouped-query attention).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from .compiled.attention import SEEN, AttentionKernel, attention_kernel, chains
from .compiled.writer import LANES
from .inputs import Branches

KEY_BLOCK = 128  # a cache has whole blocks of this many rows
MAX_ROWS = 72  # checks are cut to this many rows, whose bits must not depend on their number: a learned policy has 65


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Sizes of an attention's cache. ``n_heads`` are the query heads; max_length is in tokens."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    max_length: int
    dtype: torch.dtype
    device: torch.device


@dataclass(slots=True)
class Plan:
    """What the layers of one pass share. ``mask`` is additive, [n, keys]; the CPU's attentions have none where each row
    has a list of what it sees. ``indices``: of what the attention at hand needs.
    """

    start: int
    n: int
    mask: torch.Tensor | None = None
    indices: Any = None


class Attention(Protocol):
    number_bytes: int  # of a key's or value's number in the cache

    def plan(self, start: int, n: int, branches: Branches | None = None) -> Plan: ...

    def move(self, rows: Sequence[int], to: int) -> None:
        """Moves the keys and values of the cache ``rows`` to ``to`` and following."""

    def attend(self, layer: int, heads: torch.Tensor, plan: Plan) -> torch.Tensor: ...


def make_attention(shape: CacheShape) -> Attention:
    """The one for this CPU."""
    kernel = attention_kernel()
    return RowAttention(shape) if kernel is None or shape.head_dim % LANES else CompiledAttention(shape, kernel)


def _untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros whose pages take memory only once they are written, which most of a long context never is.

    torch.zeros writes them all: an evaluation with a cache for each of fifty lanes took 10 GB.
    """
    if not math.prod(shape):  # of a draft without layers
        return torch.zeros(shape, dtype=dtype)
    pages = mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def whole_blocks(length: int) -> int:
    return -(-length // KEY_BLOCK) * KEY_BLOCK


def grouped_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Query [n, Hq, d] over keys and values [1, Hkv, keys, d] -> [n, Hq d].

    The heads of a group become additional rows of one head, so that keys are never copied.
    """
    n, n_heads, d = query.shape
    n_kv_heads = keys.shape[1]
    groups = n_heads // n_kv_heads
    rows = query.transpose(0, 1).reshape(1, n_kv_heads, groups * n, d)
    mask = mask if groups == 1 or mask is None else torch.cat([mask] * groups)
    seen = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
    return seen.reshape(n_heads, n, d).transpose(0, 1).reshape(n, n_heads * d)


def _causal_mask(start: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive, [n, start + n]: row i sees start + i + 1 keys."""
    late = torch.ones(n, start + n, dtype=torch.bool).triu(start + 1)
    return torch.zeros(n, start + n, dtype=dtype).masked_fill_(late, float("-inf"))


class CompiledAttention:
    """In float32, row by row (compiled/attention.py), but for long parts of a prompt."""

    number_bytes = 4

    def __init__(self, shape: CacheShape, kernel: AttentionKernel) -> None:
        self._n_heads, self.kernel, self._dtype = shape.n_heads, kernel, shape.dtype
        self.capacity, heads = whole_blocks(shape.max_length), (shape.n_layers, shape.n_kv_heads)
        self._all_keys = _untouched_zeros((*heads, self.capacity // LANES, shape.head_dim, LANES), torch.float32)
        self._all_values = _untouched_zeros((*heads, shape.head_dim // LANES, self.capacity, LANES), torch.float32)
        self.keys, self.values = list(self._all_keys), list(self._all_values)

    def plan(self, start: int, n: int, branches: Branches | None = None) -> Plan:
        """``indices``: what each row sees, and the places of paths, as the kernel takes them."""
        if branches is None and n > MAX_ROWS:
            return Plan(start, n, _causal_mask(start, n, torch.float32))
        if branches is None:
            chain = chains(self.capacity)
            return Plan(start, n, indices=(chain[start : start + n], chain))
        seen, places = array("q"), array("q")  # torch.tensor takes several times as long
        for path in branches.paths:
            seen.extend((branches.trunk, len(places), len(places) + len(path), path[-1] + 1))
            places.extend(path)
        rows, steps = (torch.frombuffer(numbers, dtype=torch.int64) for numbers in (seen, places))
        return Plan(start, n, indices=(rows.view(n, SEEN), steps))

    def attend(self, layer: int, heads: torch.Tensor, plan: Plan) -> torch.Tensor:
        heads, keys, values = heads.float(), self.keys[layer], self.values[layer]
        self.kernel.store(heads, keys, values, plan.start)
        if plan.mask is None:
            found = self.kernel.attend(heads, keys, values, plan.start + plan.n, *plan.indices)
        else:
            found = self._attend_densely(heads[:, : self._n_heads], keys, values, plan.mask)
        return found.to(self._dtype)

    def _attend_densely(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Many rows, which read a key together."""
        n_keys = mask.shape[1]
        keys = keys[:, : whole_blocks(n_keys) // LANES].transpose(2, 3).flatten(1, 2)[:, :n_keys]
        values = values[:, :, :n_keys].transpose(1, 2).flatten(2)
        return grouped_attention(query, keys[None], values[None], mask)

    def move(self, rows: Sequence[int], to: int) -> None:
        for place, row in enumerate(rows, to):  # in all layers; a path's rows come after their places
            old, new = divmod(row, LANES), divmod(place, LANES)
            self._all_keys[:, :, new[0], :, new[1]] = self._all_keys[:, :, old[0], :, old[1]]
            self._all_values[:, :, :, place] = self._all_values[:, :, :, row]


class RowAttention:
    """By torch's own attention, which is called for each row where there are few."""

    def __init__(self, shape: CacheShape) -> None:
        self._n_heads, self.number_bytes = shape.n_heads, shape.dtype.itemsize
        self._held = _untouched_zeros(
            (shape.n_layers, 2, shape.n_kv_heads, whole_blocks(shape.max_length), shape.head_dim), shape.dtype
        )

    def plan(self, start: int, n: int, branches: Branches | None = None) -> Plan:
        """``indices``: the places that each row sees."""
        if branches is not None:
            return Plan(start, n, indices=[[*range(branches.trunk), *path] for path in branches.paths])
        if n <= MAX_ROWS:
            return Plan(start, n, indices=[slice(0, start + row + 1) for row in range(n)])
        return Plan(start, n, _causal_mask(start, n, self._held.dtype))

    def attend(self, layer: int, heads: torch.Tensor, plan: Plan) -> torch.Tensor:
        held, query = self._held[layer], heads[:, : self._n_heads]
        new = heads[:, self._n_heads :].unflatten(1, (2, -1)).permute(1, 2, 0, 3)
        held[:, :, plan.start : plan.start + plan.n] = new
        if plan.mask is not None:
            return self._read(query, held[:, :, : plan.start + plan.n], plan.mask)
        return torch.cat([self._read(query[i : i + 1], held[:, :, seen]) for i, seen in enumerate(plan.indices)])

    def _read(self, query: torch.Tensor, held: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """``held`` [2, Hkv, keys, d]: keys and values."""
        return grouped_attention(query, held[:1], held[1:], mask)

    def move(self, rows: Sequence[int], to: int) -> None:
        for place, row in enumerate(rows, to):
            self._held[:, :, :, place] = self._held[:, :, :, row]
