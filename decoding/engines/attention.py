"""Attention of the lean engine over its own KV cache, on a CPU (cuda_attention.py has that of the CUDA engine).

``plan(start, n, branches)`` prepares what the layers of one pass share; ``attend(layer, heads, plan)`` writes the new
keys and values and returns softmax(Q K^T / sqrt(d)) V; ``move`` keeps one path of a tree. Shapes: heads [n, Hq + 2 Hkv,
d], which are the queries, the keys and the values; result [n, Hq d]. Query heads that share a key head are adjacent
(grouped-query attention).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from mmap import mmap
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from .inputs import Branches

KEY_BLOCK = 128  # keys are read in whole blocks of this many


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
    """What the layers of one pass share. ``mask`` is additive, [n, keys].

    ``moved``, for a tree: (to, source), places in a head's scores [n keys], which are in the order of the cache; moving
    these puts what a row sees into the order of its own text, to which ``mask`` then applies.
    """

    start: int
    n: int
    mask: torch.Tensor
    indices: Any = None
    moved: tuple[torch.Tensor, torch.Tensor] | None = None


class Attention(Protocol):
    def plan(self, start: int, n: int, branches: Branches | None = None) -> Plan: ...

    def move(self, rows: Sequence[int], to: int) -> None:
        """Moves the keys and values of the cache ``rows`` to ``to`` and following."""

    def attend(self, layer: int, heads: torch.Tensor, plan: Plan) -> torch.Tensor: ...


class CausalBand:
    """Masks for any position as views of one tensor: zeros, then the causal triangle. Row i sees start + i + 1 keys."""

    def __init__(self, capacity: int, max_rows: int, dtype: torch.dtype, device: torch.device) -> None:
        rows = KEY_BLOCK + max_rows
        late = torch.ones(rows, rows, dtype=torch.bool, device=device).triu(1)
        self._capacity = capacity
        self._band = torch.zeros(rows, capacity + rows, dtype=dtype, device=device)
        self._band[:, capacity:].masked_fill_(late, float("-inf"))

    def mask(self, start: int, n: int) -> torch.Tensor:
        """[n, keys], keys padded to whole blocks."""
        row, column = start % KEY_BLOCK, self._capacity - start // KEY_BLOCK * KEY_BLOCK
        return self._band[row : row + n, column : column + whole_blocks(start + n)]

    def mask_of(self, first: int, positions: Sequence[int], n_keys: int) -> torch.Tensor:
        """[positions, n_keys] for rows at ``positions``, at least ``first``: each sees position + 1 keys."""
        hidden = first // KEY_BLOCK * KEY_BLOCK
        rows, column = [position - hidden for position in positions], self._capacity - hidden
        return self._band[rows, column : column + n_keys]


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
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Query [n, Hq, d] over keys and values [1, Hkv, keys, d] -> [n, Hq d].

    The heads of a group become additional rows of one head, so that keys are never copied.
    """
    n, n_heads, d = query.shape
    n_kv_heads = keys.shape[1]
    groups = n_heads // n_kv_heads
    rows = query.transpose(0, 1).reshape(1, n_kv_heads, groups * n, d)
    mask = mask if groups == 1 else torch.cat([mask] * groups)
    seen = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
    return seen.reshape(n_heads, n, d).transpose(0, 1).reshape(n, n_heads * d)


class BagAttention:
    """For few rows on a CPU: both products as weighted sums of table rows (``embedding_bag``).

    ``scores = q K^T`` is, for every query row, the sum of the d rows of K^T weighted by q; ``p V`` the sum of the rows
    of V weighted by p. torch's embedding_bag reads a table at nearly memory speed, while its attention and small matrix
    products spend most of their time rearranging keys: with 960 keys, 4 heads and one thread, one bfloat16 row takes 56
    microseconds instead of 200, six rows 112 instead of 250. Bags are independent, so a row's bits do not depend on the
    number of rows. Long prompts use grouped_attention.

    A row of a tree reads its keys in the order of its own text, whatever their places in the cache: scores are
    rearranged before the softmax and values are listed in that order. So its bits are those of a plain pass, too.
    """

    MAX_ROWS = 72  # the engine cuts checks to this many rows: one of a learned policy has up to 65

    def __init__(self, shape: CacheShape, max_rows: int) -> None:
        """``max_rows``: of one pass over a prompt."""
        self.n_heads, self.n_kv_heads, self.head_dim = shape.n_heads, shape.n_kv_heads, shape.head_dim
        self.n_groups = shape.n_heads // shape.n_kv_heads
        self.scale = shape.head_dim**-0.5
        self._capacity = whole_blocks(shape.max_length)
        self._band = CausalBand(self._capacity, max_rows, shape.dtype, shape.device)
        # Keys are stored transposed in blocks, [block, Hkv, d, KEY_BLOCK]; values as [Hkv, capacity, d]. Initialised to
        # zero, since a mask cannot hide a NaN.
        keys = (self._capacity // KEY_BLOCK, shape.n_kv_heads, shape.head_dim, KEY_BLOCK)
        values = (shape.n_kv_heads, self._capacity, shape.head_dim)
        self._all_keys = _untouched_zeros((shape.n_layers, *keys), shape.dtype)
        self._all_values = _untouched_zeros((shape.n_layers, *values), shape.dtype)
        self._keys, self._values = list(self._all_keys), list(self._all_values)
        self._key_tables = [one.view(-1, KEY_BLOCK) for one in self._keys]
        self._value_tables = [one.view(-1, shape.head_dim) for one in self._values]
        self._indices = lru_cache(maxsize=24)(self._make_indices)
        self._bag = torch.ops.aten._embedding_bag_forward_only.default

    def plan(self, start: int, n: int, branches: Branches | None = None) -> Plan:
        if branches is not None:
            return self._plan_tree(start, n, branches)
        mask = self._band.mask(start, n)
        return Plan(start, n, mask, self._indices(n, mask.shape[1]) if n <= self.MAX_ROWS else None)

    def _plan_tree(self, start: int, n: int, branches: Branches) -> Plan:
        """Positions are at least the trunk's end, and at most ``start + n - 1``: a path has no more rows than that."""
        trunk, mask = branches.trunk, self._band.mask_of(branches.trunk, branches.positions, whole_blocks(start + n))
        n_keys = mask.shape[1]
        moved = [
            (row * n_keys + trunk + depth, row * n_keys + place)
            for row, path in enumerate(branches.paths)
            for depth, place in enumerate(path)
            if place != trunk + depth
        ]
        to, source = (torch.tensor(places) for places in zip(*moved))
        key_rows, key_bags, value_rows, value_bags = self._indices(n, n_keys)
        by_head = value_rows.view(self.n_heads, -1)
        value_rows = by_head.index_copy(1, to, by_head.index_select(1, source)).view(-1)
        return Plan(start, n, mask, (key_rows, key_bags, value_rows, value_bags), (to, source))

    def _make_indices(self, n: int, n_keys: int) -> tuple[torch.Tensor, ...]:
        """Table rows and offsets of all bags: for the scores in the order (block, head, row, dimension), for the values
        in the order (head, row, key).
        """
        rows, blocks = self.n_groups * n, n_keys // KEY_BLOCK
        key_rows = torch.arange(blocks * self.n_kv_heads * self.head_dim, dtype=torch.int32)
        key_rows = key_rows.view(-1, 1, self.head_dim).expand(-1, rows, -1).reshape(-1)
        value_rows = torch.arange(self.n_kv_heads, dtype=torch.int32)[:, None] * self._capacity
        value_rows = value_rows + torch.arange(n_keys, dtype=torch.int32)
        value_rows = value_rows[:, None].expand(-1, rows, -1).reshape(-1)
        key_bags = torch.arange(blocks * self.n_kv_heads * rows, dtype=torch.int32) * self.head_dim
        value_bags = torch.arange(self.n_kv_heads * rows, dtype=torch.int32) * n_keys
        return key_rows, key_bags, value_rows, value_bags

    def attend(self, layer: int, heads: torch.Tensor, plan: Plan) -> torch.Tensor:
        turned = self.n_heads + self.n_kv_heads
        query = heads[:, : self.n_heads]  # slices: split() takes a microsecond more
        self._write(layer, heads[:, self.n_heads : turned], heads[:, turned:], plan.start, plan.n)
        if plan.indices is None:
            return self._attend_densely(layer, query, plan)
        n, n_keys = plan.mask.shape
        blocks = n_keys // KEY_BLOCK
        key_rows, key_bags, value_rows, value_bags = plan.indices
        weights = query.transpose(0, 1).expand(blocks, -1, -1, -1).reshape(-1)
        scores = self._sum_bags(self._key_tables[layer], key_rows, key_bags, weights)
        scores = scores.view(blocks, -1, KEY_BLOCK).transpose(0, 1).reshape(self.n_heads, n, n_keys)
        if plan.moved is not None:
            to, source = plan.moved
            by_head = scores.view(self.n_heads, -1)
            by_head.index_copy_(1, to, by_head.index_select(1, source))
        p = torch.softmax(torch.add(plan.mask, scores, alpha=self.scale), -1)
        seen = self._sum_bags(self._value_tables[layer], value_rows, value_bags, p.view(-1))
        return seen.view(self.n_heads, n, -1).transpose(0, 1).reshape(n, -1)

    def _sum_bags(
        self, table: torch.Tensor, indices: torch.Tensor, bags: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        return self._bag(table, indices, bags, False, 0, False, weights, False, -1)[0]

    def _write(self, layer: int, key: torch.Tensor, value: torch.Tensor, start: int, n: int) -> None:
        if n == 1:  # most passes: two plain copies
            block, place = divmod(start, KEY_BLOCK)
            self._keys[layer][block, :, :, place] = key[0]
            self._values[layer][:, start] = value[0]
            return
        self._values[layer][:, start : start + n] = value.transpose(0, 1)
        keys, turned, done = self._keys[layer], key.permute(1, 2, 0), 0
        while done < n:
            block, place = divmod(start + done, KEY_BLOCK)
            part = min(KEY_BLOCK - place, n - done)
            keys[block, :, :, place : place + part] = turned[:, :, done : done + part]
            done += part

    def move(self, rows: Sequence[int], to: int) -> None:
        for place, row in enumerate(rows, to):  # in all layers; a path's rows come after their places
            old, new = divmod(row, KEY_BLOCK), divmod(place, KEY_BLOCK)
            self._all_keys[:, new[0], :, :, new[1]] = self._all_keys[:, old[0], :, :, old[1]]
            self._all_values[:, :, place] = self._all_values[:, :, row]

    def _attend_densely(self, layer: int, query: torch.Tensor, plan: Plan) -> torch.Tensor:
        n_keys = plan.mask.shape[1]
        keys = self._keys[layer][: n_keys // KEY_BLOCK].permute(1, 0, 3, 2).reshape(self.n_kv_heads, n_keys, -1)
        return grouped_attention(query, keys[None], self._values[layer][None, :, :n_keys], plan.mask)
