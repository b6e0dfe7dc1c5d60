"""bfloat16, activations too, float32 sums: fast where the CPU multiplies it (AVX512-BF16, AMX), and on GPUs."""

from __future__ import annotations

import torch

from .. import instructions
from ..linears import FloatHead, half_linear
from . import WeightFormat


class Bfloat16(WeightFormat):
    name = "bfloat16"
    compute = torch.bfloat16
    layer_bytes = head_bytes = reduced_head_bytes = 2
    holds = frozenset({"bfloat16"})
    general = True

    def is_fast_here(self) -> bool:
        return instructions.multiplies_bfloat16()

    def head(self, weight: torch.Tensor, bias: torch.Tensor | None, reduced: bool) -> FloatHead:
        return FloatHead(half_linear(weight, bias))


FORMAT = Bfloat16()
