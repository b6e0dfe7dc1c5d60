"""int8 weights and inputs, int32 sums (FBGEMM), rounded: for drafts. Half the bytes of float16 on x86 CPUs with AVX2.

A row of weights has one scale, and so has a row of inputs: a row's bits do not depend on the other rows of a pass.
"""

from __future__ import annotations

from warnings import catch_warnings, simplefilter

import torch

from .. import instructions
from ..linears import FloatHead, Linear, UnfusedLinear, exact_linear
from . import WeightFormat

LEVELS = 127  # on each side of zero
_FEWER_LEVELS = 63  # of inputs where a CPU adds two products in 16 bits: inputs from 1 to 127, 2 * 127 * 127 < 2^15


class Int8Linear(UnfusedLinear):
    """[n, in] float32 -> [n, out] float32."""

    dtype = torch.float32

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.n_out, self.n_in = weight.shape
        self.bias = None if bias is None else bias.float()
        self._packed = torch.ops.quantized.linear_prepack(round_rows(weight), None)
        self._product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
        levels = LEVELS if instructions.sums_int8_exactly() else _FEWER_LEVELS
        self._step, self._zero = 1 / levels, levels + 1

    def product(self, x: torch.Tensor) -> torch.Tensor:
        largest = torch.linalg.vector_norm(x, torch.inf, -1, True).clamp_min_(1e-30)  # a row of zeros stays one
        return self._product(torch.div(x, largest), self._step, self._zero, self._packed).mul_(largest)


def round_rows(weight: torch.Tensor) -> torch.Tensor:
    """``weight`` [out, in] in int8, symmetric, with a scale for each row; a quantized tensor."""
    weight = weight.float()
    scales = weight.abs().amax(dim=1).clamp_min(1e-8) / LEVELS
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with catch_warnings():
        simplefilter("ignore")  # quantized tensors are to go some day; FBGEMM's products take nothing else so far
        return torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)


def int8_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """The product in int8; without FBGEMM by the same rounded weights, in float32."""
    if instructions.has_fbgemm():
        return Int8Linear(weight, bias)
    return exact_linear(round_rows(weight).dequantize(), bias)


def int8_head(weight: torch.Tensor, bias: torch.Tensor | None) -> FloatHead:
    return FloatHead(int8_linear(weight, None if bias is None else bias.float()))


class Int8(WeightFormat):
    name = "int8"
    compute = torch.float32
    layer_bytes = head_bytes = reduced_head_bytes = 1

    def is_fast_here(self) -> bool:
        return instructions.has_fbgemm()

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return int8_linear(weight, bias)

    def head(self, weight: torch.Tensor, bias: torch.Tensor | None, reduced: bool) -> FloatHead:
        return int8_head(weight, bias)


FORMAT = Int8()
