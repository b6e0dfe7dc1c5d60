"""float16 weights, float32 activations and sums (FBGEMM): half the bytes of float32 on any x86 CPU with AVX2.

The weights are widened while they are read, so no half-precision instructions are needed. A float16 checkpoint is held
exactly, and so is a bfloat16 one but for numbers below 2^-17, which are off by at most 2^-25 (float16 has fewer small
ones). A matrix with a number beyond 65,504 is held in float32.
"""

from __future__ import annotations

import torch

from .. import instructions
from ..linears import FloatHead, HalfLinear, Linear, fits_half, half_head, plain_or_packed
from . import WeightFormat


class Float16(WeightFormat):
    name = "float16"
    compute = torch.float32
    layer_bytes = head_bytes = reduced_head_bytes = 2
    holds = frozenset({"float16", "bfloat16"})

    def is_fast_here(self) -> bool:
        return instructions.has_fbgemm()

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        if fits_half(weight) and instructions.has_fbgemm():
            return HalfLinear(weight, bias)
        return plain_or_packed(_rounded(weight), bias)

    def head(self, weight: torch.Tensor, bias: torch.Tensor | None, reduced: bool) -> FloatHead:
        return half_head(_rounded(weight), bias)


def _rounded(weight: torch.Tensor) -> torch.Tensor:
    """The numbers that float16 holds of ``weight``, so that they are the same without FBGEMM, in more bytes."""
    return weight.half().float() if fits_half(weight) else weight


FORMAT = Float16()
