"""int8 weights with a scale for each output, float32 activations and sums (../compiled/products.py).

For drafts: half the bytes of float16.

A draft's head may be *screened*: all tokens get a rough logit, then those that may be the best their exact one. The
head is most of what a draft of one layer reads, and nearly all of its logits matter only in the sum of their
exponentials. A rough logit takes ``screen_size`` numbers of a token instead of ``hidden_size`` (SVD-softmax: Shim et
al. 2017): h W^T is about (h D^T) (W U^T)^T, with D and U [screen_size, hidden_size] fitted to the states h that the
head reads (training/screen.py). The draft then guesses a little worse, and no text depends on it.
"""

from __future__ import annotations

import torch

from ..compiled.products import Product, product_of
from ..compiled.readout import GROUPS, Refinement, refinement
from ..compiled.writer import LANES
from ..linears import CompiledLinear, Linear, exact_linear
from ..slim import Screen
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


class ScreenedLinear(Linear):
    """The product by ``weight`` [out, in], rough for all outputs but the best ones of GROUPS groups."""

    dtype = torch.float32
    rows_apart = True
    bias = None

    def __init__(self, weight: torch.Tensor, screen: Screen, product: Product, refine: Refinement) -> None:
        """Takes a shape that ``screened_linear`` allows. ``product``: that of int8."""
        weight, self.kernel, self._refine = weight.float(), product, refine
        self.n_out, self.n_in = weight.shape
        rough = screen.down.float(), weight @ screen.up.float().t()
        self._down, self._rough = (
            CompiledLinear(levels, None, product, scales) for levels, scales in map(round_rows, rough)
        )
        self._levels, self._scales = round_rows(weight)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        y = self._rough(self._down(x))
        self._refine(x, y, self._levels, self._scales)
        return y

    @property
    def fields(self) -> tuple[int, ...]:
        """Those of the rough product, then what SCREEN of ../compiled/layers.py names."""
        rough, down = self._rough.fields, self._down.fields
        assert rough is not None and down is not None
        return *rough, *down, self._levels.data_ptr(), self._scales.data_ptr()

    @property
    def numbers(self) -> int:
        return self._down.n_out * (self.n_in + self.n_out) + GROUPS * self.n_in


def screened_linear(weight: torch.Tensor, screen: Screen) -> ScreenedLinear | None:
    """None where it cannot be had in the shape of ``weight`` [out, in], or on this CPU."""
    product, refine = product_of(torch.int8), refinement()
    if product is None or refine is None:
        return None
    (n_out, size), (narrow, wide) = weight.shape, screen.down.shape
    in_blocks = size % LANES == 0 and n_out % GROUPS == 0 and narrow % product.lanes == 0
    return ScreenedLinear(weight, screen, product, refine) if in_blocks and narrow <= size == wide else None


def int8_head(weight: torch.Tensor, bias: torch.Tensor | None, screen: Screen | None) -> Linear:
    """A draft's reduced head, screened if it can be."""
    screened = None if screen is None or bias is not None else screened_linear(weight, screen)
    return screened or int8_linear(weight, bias)


class Int8(WeightFormat):
    name = "int8"
    compute = torch.float32
    layer_bytes = head_bytes = reduced_head_bytes = 1

    def is_fast_here(self) -> bool:
        return product_of(torch.int8) is not None

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return int8_linear(weight, bias)

    def head(self, weight: torch.Tensor, bias: torch.Tensor | None, reduced: bool, screen: Screen | None) -> Linear:
        return int8_head(weight, bias, screen if reduced else None)


FORMAT = Int8()
