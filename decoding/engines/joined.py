"""The lean engine's layers as one compiled call (compiled/layers.py), where all that it does is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .attention import Attention, CompiledAttention
from .compiled.layers import NORMS, PRODUCTS, CompiledLayers, layers_function
from .compiled.writer import LANES
from .linears import CompiledLinear


def join_layers(
    blocks: Sequence[Any],
    attention: Attention,
    norms: tuple[torch.Tensor, torch.Tensor],
    turns: tuple[torch.Tensor, torch.Tensor],
) -> CompiledLayers | None:
    """``blocks``: lean.py's. ``norms``, ``turns``: as CompiledLayers takes them. None where a product or the attention
    is not compiled, or a matrix has padding.
    """
    if not blocks or not isinstance(attention, CompiledAttention) or turns[0].shape[-1] % (2 * LANES):
        return None
    layers, kernels = [], set()
    for layer, block in enumerate(blocks):
        row = [getattr(block, norm).data_ptr() for norm in NORMS]
        row.append(0 if block.qk_norm is None else block.qk_norm.data_ptr())
        row += attention.keys[layer].data_ptr(), attention.values[layer].data_ptr()
        for linear in (getattr(block, product) for product in PRODUCTS):
            fields = linear.fields if isinstance(linear, CompiledLinear) else None
            if fields is None:
                return None
            row += fields
            kernels.add(linear.kernel)
        layers.append(row)
    run = layers_function(kernels.pop(), attention.kernel) if len(kernels) == 1 else None
    if run is None:
        return None
    n_kv_heads, d = attention.values[0].shape[0], turns[0].shape[-1]
    n_heads = blocks[0].out.n_in // d
    sizes = attention.capacity, n_heads, n_kv_heads, d, blocks[0].out.n_out, blocks[0].gate.n_out
    return CompiledLayers(run, layers, norms, turns, sizes)
