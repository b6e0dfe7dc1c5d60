"""int8 weights, one scale per output row; bfloat16 activations. Half the bytes of bfloat16, and rounded: for drafts.

The head takes int8 inputs, too, where the CPU sums them exactly, else it stays in two bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import instructions
from ..linears import FloatHead, Int8Head, UnfusedLinear, half_head, round_rows
from . import WeightFormat


class Int8Linear(UnfusedLinear):
    """Symmetric int8 weights with one bfloat16 scale per output row; activations stay bfloat16."""

    dtype = torch.bfloat16

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.n_out, self.n_in = weight.shape
        self.weight, self.scale = round_rows(weight)
        self.bias = None if bias is None else bias.bfloat16()
        self._matmul = torch.ops.aten._weight_int8pack_mm.default

    def product(self, x: torch.Tensor) -> torch.Tensor:
        return self._matmul(x, self.weight, self.scale)


class Int8(WeightFormat):
    name = "int8"
    compute = torch.bfloat16
    layer_bytes = 1
    head_bytes = reduced_head_bytes = 1 if instructions.sums_int8_exactly() else 2

    def is_fast_here(self) -> bool:
        return instructions.has_vectors() and instructions.sums_int8_exactly()

    def linear(self, weights: Sequence[torch.Tensor], bias: torch.Tensor | None, stored: Sequence[Any]) -> Int8Linear:
        return Int8Linear(torch.cat(list(weights)), bias)

    def head(self, weight: torch.Tensor, bias: torch.Tensor | None, reduced: bool) -> Int8Head | FloatHead:
        return Int8Head(weight, bias) if instructions.sums_int8_exactly() else half_head(weight, bias)


FORMAT = Int8()
