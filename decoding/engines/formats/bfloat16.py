"""bfloat16, activations too, float32 sums: fast where the CPU multiplies it (AVX512-BF16, AMX), and on GPUs.

Where products of pairs are compiled (../compiled/products.py), activations are float32, and rounded when they are
multiplied.
"""

from __future__ import annotations

import torch

from .. import instructions
from ..compiled.products import Product, product_of
from ..linears import CompiledLinear, FloatHead, Linear, exact_linear, half_linear
from . import WeightFormat


class Bfloat16(WeightFormat):
    name = "bfloat16"
    compute = torch.bfloat16
    layer_bytes = head_bytes = reduced_head_bytes = 2
    holds = frozenset({"bfloat16"})
    general = True

    def is_fast_here(self) -> bool:
        return instructions.multiplies_bfloat16()

    def compute_on(self, device: torch.device) -> torch.dtype:
        return self.compute if _product(device) is None else torch.float32

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        product = _product(weight.device)
        return exact_linear(weight, bias) if product is None else CompiledLinear(weight.to(self.compute), bias, product)

    def head(self, weight: torch.Tensor, bias: torch.Tensor | None, reduced: bool) -> FloatHead:
        return FloatHead(half_linear(weight, bias) if _product(weight.device) is None else self.linear(weight, bias))


def _product(device: torch.device) -> Product | None:
    return product_of(torch.bfloat16) if device.type == "cpu" else None


FORMAT = Bfloat16()
