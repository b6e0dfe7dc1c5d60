"""Linear layers of four-bit weights, on a CPU.

A row's inputs are cut into groups of 32; a group has sixteen evenly spaced values, ``scale * (level - 8) + zero`` with
levels 0..15 (asymmetric rounding, llama.cpp's Q4_1: ``d * level + m`` is scale = d, zero = m + 8 d). Scale and zero are
bfloat16, so a weight takes five bits. Activations stay bfloat16 and sums float32.

A pass over one token reads a third of what bfloat16 weights take, but every further row costs nearly as much again:
the levels are unpacked again for every few rows. So plain decoding and drafting become faster, but checking does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..linears import Linear, half_linear
from ..slim import Screen
from . import WeightFormat
from .int8 import int8_head

GROUP = 32  # inputs that share a scale and a zero
LEVELS = 16
MIDDLE = 8  # the level whose value is the zero
_ROWS = 16  # the packed layout takes outputs in groups of this size
_INNER_TILES = 1  # required by the operation, without effect on a CPU


@dataclass(frozen=True, slots=True)
class Groups:
    """A matrix [out, in] in four bits: levels [out, in], uint8; scale and zero [out, in / 32], float32."""

    levels: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor

    def dequantised(self) -> torch.Tensor:
        """The weights, [out, in], float32."""
        steps = (self.levels.float() - MIDDLE).view(*self.scale.shape, GROUP)
        return (steps * self.scale[..., None] + self.zero[..., None]).view(self.levels.shape)

    def rounded(self) -> Groups:
        """The same with scale and zero as :class:`Int4Linear` holds them, in bfloat16."""
        return Groups(self.levels, self.scale.bfloat16().float(), self.zero.bfloat16().float())


def round_to_groups(weight: torch.Tensor) -> Groups:
    """``weight`` [out, in] rounded to the sixteen values between each group's least and largest, as Q4_1 does."""
    grouped = weight.detach().float().view(weight.shape[0], -1, GROUP)
    least, largest = grouped.amin(-1), grouped.amax(-1)
    scale = (largest - least) / (LEVELS - 1)
    steps = (grouped - least[..., None]) / scale.clamp_min(1e-12)[..., None]
    levels = steps.round().clamp(0, LEVELS - 1).to(torch.uint8)
    return Groups(levels.view(weight.shape), scale, least + MIDDLE * scale)


class Int4Linear(Linear):
    """y = x W^T + b with W in groups."""

    dtype = torch.bfloat16

    def __init__(self, groups: Groups, bias: torch.Tensor | None = None) -> None:
        self.n_out, self.n_in = groups.levels.shape
        self.bias = None if bias is None else bias.bfloat16()
        self._weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(groups.levels.int(), _INNER_TILES)
        both = torch.stack([groups.scale, groups.zero], dim=-1)  # [out, groups, 2]
        self._scales = both.transpose(0, 1).bfloat16().contiguous()
        self._matmul = torch.ops.aten._weight_int4pack_mm_for_cpu.default

    def product(self, x: torch.Tensor) -> torch.Tensor:
        return self._matmul(x, self._weight, GROUP, self._scales)


class Int4(WeightFormat):
    """The head stays in two bytes; a draft's reduced head is one of int8."""

    name = "int4"
    compute = torch.bfloat16
    layer_bytes = 0.5 + 2 * 2 / GROUP
    head_bytes, reduced_head_bytes = 2, 1

    def is_fast_here(self) -> bool:
        """Whether torch's own kernels are vectorised: that of this product is slow otherwise."""
        return "AVX" in torch.backends.cpu.get_cpu_capability()

    def refusal(self, n_out: int, n_in: int) -> str | None:
        if n_in % GROUP == 0 and n_out % _ROWS == 0:
            return None
        return (
            f"a layer of {n_in} inputs and {n_out} outputs does not divide into groups of {GROUP} inputs and {_ROWS} "
            "outputs"
        )

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Int4Linear:
        return Int4Linear(round_to_groups(weight), bias)

    def head(self, weight: torch.Tensor, bias: torch.Tensor | None, reduced: bool, screen: Screen | None) -> Linear:
        return int8_head(weight, bias, screen) if reduced else half_linear(weight, bias)


FORMAT = Int4()
