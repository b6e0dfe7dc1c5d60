"""bfloat16 weights, float32 sums.

Where its products are compiled (../compiled/products.py), on a CPU, activations are float32, and rounded when they are
multiplied if the CPU multiplies pairs of bfloat16 numbers; elsewhere they are bfloat16.
"""

from __future__ import annotations

import torch

from ..compiled.products import product_of
from ..linears import Linear, exact_linear
from ..slim import Screen
from . import WeightFormat


class Bfloat16(WeightFormat):
    name = "bfloat16"
    compute = torch.bfloat16
    layer_bytes = head_bytes = reduced_head_bytes = 2
    holds = frozenset({"bfloat16"})
    general = True

    def is_fast_here(self) -> bool:
        """Where its numbers are only widened, float16 is at least as fast."""
        product = product_of(torch.bfloat16)
        return product is not None and product.inputs == 2

    def compute_on(self, device: torch.device) -> torch.dtype:
        return torch.float32 if device.type == "cpu" and product_of(torch.bfloat16) else self.compute

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return exact_linear(weight.to(self.compute), bias)

    def head(self, weight: torch.Tensor, bias: torch.Tensor | None, reduced: bool, screen: Screen | None) -> Linear:
        if product_of(torch.bfloat16):
            return self.linear(weight, bias)
        return exact_linear(weight.float(), None if bias is None else bias.float())


FORMAT = Bfloat16()
