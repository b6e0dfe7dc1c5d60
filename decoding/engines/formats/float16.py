"""float16 weights, float32 activations and sums (FBGEMM): half the bytes of float32 on any x86 CPU with AVX2.

The weights are widened while they are read, so no half-precision instructions are needed. A float16 checkpoint is held
exactly, and so is a bfloat16 one but for numbers below 2^-17, which are off by at most 2^-25 (float16 has fewer small
ones). A matrix with a number beyond 65,504 is held in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import instructions
from ..linears import DenseLinear, FloatHead, HalfHead, Linear, UnfusedLinear, fits_half, half_head, plain_or_packed
from . import WeightFormat


class HalfLinear(UnfusedLinear):
    """[n, in] float32 -> [n, out] float32; bias included in the product."""

    dtype = torch.float32

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.n_out, self.n_in = weight.shape
        self.bias = None  # FBGEMM adds it
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None if bias is None else bias.float())
        self._product = torch.ops.quantized.linear_dynamic_fp16.default

    def product(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x, self._packed)


class Float16(WeightFormat):
    name = "float16"
    compute = torch.float32
    layer_bytes = head_bytes = reduced_head_bytes = 2
    holds = frozenset({"float16", "bfloat16"})

    def is_fast_here(self) -> bool:
        return instructions.packs_float16()

    def linear(self, weights: Sequence[torch.Tensor], bias: torch.Tensor | None, stored: Sequence[Any]) -> Linear:
        weight = torch.cat(list(weights))
        if not fits_half(weight):
            return plain_or_packed(weight, bias)
        if instructions.packs_float16():
            return HalfLinear(weight, bias)
        return DenseLinear(weight.half().float(), bias)  # the same numbers, in more bytes

    def head(self, weight: torch.Tensor, bias: torch.Tensor | None, reduced: bool) -> HalfHead | FloatHead:
        return half_head(weight, bias)


FORMAT = Float16()
