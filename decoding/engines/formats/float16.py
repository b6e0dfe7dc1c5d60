"""float16 weights, float32 activations and sums: half the bytes of float32 (../compiled/products.py).

The weights are widened while they are read, so no half-precision arithmetic is needed. A float16 checkpoint is held
exactly, and so is a bfloat16 one but for numbers below 2^-17, which are off by at most 2^-25 (float16 has fewer small
ones). A matrix with a number beyond 65,504 is held in float32.
"""

from __future__ import annotations

import torch

from ..compiled.products import product_of
from ..linears import Linear, half_linear
from . import WeightFormat


class Float16(WeightFormat):
    name = "float16"
    compute = torch.float32
    layer_bytes = head_bytes = reduced_head_bytes = 2
    holds = frozenset({"float16", "bfloat16"})

    def is_fast_here(self) -> bool:
        return product_of(torch.float16) is not None

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return half_linear(weight, bias)


FORMAT = Float16()
