"""int8 weights with a scale for each output, float32 activations and sums (../compiled/products.py).

For drafts: half the bytes of float16.
"""

from __future__ import annotations

import torch

from ..compiled.products import product_of
from ..linears import CompiledLinear, Linear, exact_linear
from . import WeightFormat

LEVELS = 127  # on each side of zero


def round_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``weight`` [out, in] as symmetric int8 levels, and a scale for each row, [out]."""
    weight = weight.float()
    scales = weight.abs().amax(dim=1).clamp_min(1e-8) / LEVELS
    return (weight / scales[:, None]).round().to(torch.int8), scales


def int8_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """The product in int8; where it cannot be compiled by the same rounded weights, in float32."""
    levels, scales = round_rows(weight)
    product = product_of(torch.int8)
    if product is None:
        return exact_linear(levels * scales[:, None], None if bias is None else bias.float())
    return CompiledLinear(levels, bias, product, scales)


class Int8(WeightFormat):
    name = "int8"
    compute = torch.float32
    layer_bytes = head_bytes = reduced_head_bytes = 1

    def is_fast_here(self) -> bool:
        return product_of(torch.int8) is not None

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return int8_linear(weight, bias)


FORMAT = Int8()
