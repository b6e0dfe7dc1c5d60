"""The lean engine's layers and head, and a draft's projections, each as one compiled call (compiled/calls.py), where
all that it does is compiled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .attention import Attention, CompiledAttention
from .compiled.attention import attention_kernel
from .compiled.calls import CompiledLayers, CompiledProjection
from .compiled.layers import NORMS, PRODUCTS, SCREEN, layers_functions
from .compiled.writer import LANES
from .linears import CompiledLinear, FloatHead, Linear
from .screened import ScreenedHead

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Block:
    """Weights of one layer. ``qkv`` is [(Hq + 2 Hkv) d, hidden]; norms are float32, multiplied by the square root of
    their size.
    """

    attention_norm: torch.Tensor
    qkv: Linear
    out: Linear
    mlp_norm: torch.Tensor
    gate: Linear
    up: Linear
    down: Linear
    qk_norm: torch.Tensor | None  # [Hq + Hkv, d], if the family normalises queries and keys


def join_layers(
    blocks: Sequence[Block],
    attention: Attention,
    norms: tuple[torch.Tensor, torch.Tensor],
    turns: tuple[torch.Tensor, torch.Tensor],
    head: Any,
) -> CompiledLayers | None:
    """``head``: lean.py's. ``norms``, ``turns``: as CompiledLayers takes them. None where a product or the
    attention is not compiled, or a matrix of a block has padding.
    """
    if not blocks or not isinstance(attention, CompiledAttention) or turns[0].shape[-1] % (2 * LANES):
        return None
    layers, kernels = [], set()
    for layer, block in enumerate(blocks):
        row = [getattr(block, norm).data_ptr() for norm in NORMS]
        row.append(0 if block.qk_norm is None else block.qk_norm.data_ptr())
        row += attention.keys[layer].data_ptr(), attention.values[layer].data_ptr()
        for linear in (getattr(block, product) for product in PRODUCTS):
            fields = _fields_of(linear)
            if fields is None:
                return None
            row += fields
            kernels.add(linear.kernel)
        layers.append(row)
    functions = layers_functions(*kernels, attention.kernel) if len(kernels) == 1 else None
    if functions is None:
        return None
    last = head.linear if isinstance(head, FloatHead | ScreenedHead) else None
    joined = _fields_of(last) if isinstance(last, CompiledLinear) and last.kernel in kernels else None
    if joined is not None:
        joined += head.fields if isinstance(head, ScreenedHead) else (0,) * len(SCREEN)
    n_kv_heads, d = attention.values[0].shape[0], turns[0].shape[-1]
    n_heads = blocks[0].out.n_in // d
    sizes = attention.capacity, n_heads, n_kv_heads, d, blocks[0].out.n_out, blocks[0].gate.n_out
    return CompiledLayers(functions.run, layers, norms, turns, sizes, joined, 0 if last is None else last.n_out)


def join_projection(
    linear: Linear, scale: torch.Tensor, parts: int, plain: Callable[..., torch.Tensor]
) -> CompiledProjection | None:
    """``scale``, ``parts``: as CompiledProjection takes them. None where the product is not compiled, or where the call
    computes something else than ``plain``.
    """
    fields, attention = _fields_of(linear), attention_kernel()
    if fields is None or attention is None or scale.shape[-1] % LANES:
        return None
    assert isinstance(linear, CompiledLinear)
    functions = layers_functions(linear.kernel, attention)
    if functions is None:
        return None
    made = CompiledProjection(functions.project, fields, linear.n_out, scale, parts)
    shape = max(1, parts), 2, scale.shape[-1]
    states = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    if agree(made(*states), plain(*states)):
        return made
    log.warning("a compiled projection is wrong on this CPU, and not used")
    return None


def agree(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether they are the same but for rounding."""
    return bool((found - expected).norm() < 0.02 * expected.norm())


def _fields_of(linear: Linear) -> tuple[int, ...] | None:
    return linear.fields if isinstance(linear, CompiledLinear) else None
