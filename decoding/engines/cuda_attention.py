"""Attention of the CUDA engine over its own KV cache, whose places and masks are computed on the device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F

from .attention import CacheShape, Plan, grouped_attention, whole_blocks
from .inputs import Branches

MAX_TREE = 128  # rows after the trunk that a pass over a tree can see


def key_bucket(length: int, capacity: int) -> int:
    """The number of keys that a pass ending at ``length`` reads: a power of two times 256, at most the capacity."""
    keys = 256
    while keys < length:
        keys *= 2
    return min(keys, capacity)


@cache
def takes_groups(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch prefers cuDNN's attention, which takes grouped heads with a mask; its others copy the keys then.

    On an H200 a layer of SmolLM2 takes 8 microseconds with it, and 15 with the heads of a group as rows.
    """
    return device.type == "cuda" and dtype != torch.float32 and torch.cuda.get_device_capability(device) >= (9, 0)


class FixedAttention:
    """A KV cache [layers, 2, Hkv, capacity, d], written and masked by positions on the device."""

    def __init__(self, shape: CacheShape, most: int) -> None:
        """``most``: rows of a pass, which may be padding beyond the context."""
        dtype, device = shape.dtype, shape.device
        self._n_heads, self.number_bytes = shape.n_heads, dtype.itemsize
        self.capacity = whole_blocks(shape.max_length + most)
        self._keys = torch.arange(self.capacity, device=device)
        whole = (shape.n_layers, 2, shape.n_kv_heads, self.capacity, shape.head_dim)
        self.held = torch.zeros(whole, dtype=dtype, device=device)
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
        self.held[:, :, :, to : to + len(rows)] = self.held[:, :, :, old]

    def attend(self, layer: int, heads: torch.Tensor, plan: Plan) -> torch.Tensor:
        assert plan.mask is not None
        held = self.held[layer]
        query, new = heads.split((self._n_heads, 2 * held.shape[1]), 1)
        held.flatten(0, 1).index_copy_(1, plan.indices, new.transpose(0, 1))
        keys, values = held[:, None, :, : plan.mask.shape[1]].unbind(0)
        if not takes_groups(held.device, held.dtype):
            return grouped_attention(query, keys, values, plan.mask)
        rows = query.transpose(0, 1)[None]
        seen = F.scaled_dot_product_attention(rows, keys, values, attn_mask=plan.mask, enable_gqa=True)
        return seen[0].transpose(0, 1).flatten(1)
