"""Attention of the CUDA engine over its own KV cache, whose places and masks are computed on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .attention import CacheShape, Plan, grouped_attention, whole_blocks
from .inputs import Branches

MAX_TREE = 128  # rows after the trunk that a pass over a tree can see


def key_bucket(length: int, capacity: int) -> int:
    """The number of keys that a pass ending at ``length`` reads: a power of two times 256, at most the capacity."""
    keys = 256
    while keys < length:
        keys *= 2
    return min(keys, capacity)


class FixedAttention:
    """A KV cache [2, Hkv, capacity, d] per layer, written and masked by positions on the device."""

    def __init__(self, shape: CacheShape, most: int) -> None:
        """``most``: rows of a pass, which may be padding beyond the context."""
        dtype, device = shape.dtype, shape.device
        self.capacity = whole_blocks(shape.max_length + most)
        self._keys = torch.arange(self.capacity, device=device)
        layer = (2, shape.n_kv_heads, self.capacity, shape.head_dim)
        self.layers = [torch.zeros(layer, dtype=dtype, device=device) for _ in range(shape.n_layers)]
        self._seen = torch.zeros((), dtype=dtype, device=device)
        self._unseen = torch.full((), float("-inf"), dtype=dtype, device=device)

    def plan(self, start: int, n: int, branches: Branches | None = None) -> Plan:
        assert branches is None, "the engine's own buffers describe a tree"
        places = torch.arange(start, start + n, device=self._keys.device)
        return self.plan_at(places, key_bucket(start + n, self.capacity))

    def plan_at(self, places: torch.Tensor, n_keys: int) -> Plan:
        """``places`` [n] int64: row i writes at its position and sees all keys up to it."""
        mask = torch.where(self._keys[:n_keys] <= places[:, None], self._seen, self._unseen)
        return Plan(0, places.shape[0], mask, places)

    def plan_tree(self, places: torch.Tensor, trunk: torch.Tensor, sees: torch.Tensor, n_keys: int) -> Plan:
        """Row i sees the keys before ``trunk`` [1] and those at trunk + j where ``sees`` [n, MAX_TREE] is true."""
        keys = self._keys[:n_keys] - trunk
        branch = sees.index_select(1, keys.clamp(0, MAX_TREE - 1)) & (keys < MAX_TREE)
        mask = torch.where((keys < 0) | branch, self._seen, self._unseen)
        return Plan(0, places.shape[0], mask, places)

    def move(self, rows: Sequence[int], to: int) -> None:
        old = torch.tensor(rows, device=self._keys.device)
        for layer in self.layers:
            layer[:, :, to : to + len(rows)] = layer[:, :, old]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: Plan
    ) -> torch.Tensor:
        cache = self.layers[layer]
        cache[0].index_copy_(1, plan.indices, key.transpose(0, 1))
        cache[1].index_copy_(1, plan.indices, value.transpose(0, 1))
        keys, values = cache[:, None, :, : plan.mask.shape[1]].unbind(0)
        return grouped_attention(query, keys, values, plan.mask)
