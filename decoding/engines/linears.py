"""Products by a matrix, y = x W^T + b; what several formats share.

All have one interface: ``__call__(x)`` and ``plus(x, other)``, with x of [n, in] and the result [n, out], both of dtype
``dtype``.

- Compiled: for the CPU, int8, float16, bfloat16 or float32 weights, float32 sums (compiled/products.py).
- Dense: ``torch.nn.functional.linear``, any dtype.

A library may have another kernel for some numbers of rows, which sums in another order: invariance.py tests the
model's shapes; where bits differ, ``padded`` says what to pad, and ``most`` how many rows to multiply together.

Heads return float32: near 25 the spacing of bfloat16 is 0.125, so that the two best of 50,000 logits often tie.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F

from .compiled.products import Product, product_of

TESTED_ROWS = 24  # all numbers of rows up to this one are tested, and padded if necessary


class Linear(ABC):
    """``dtype``: of x and y. ``bias``: one that the ``product`` does not add; it follows, in place. ``padded``: the
    number of rows to which passes of so many rows are padded. ``most``: so many rows of one product have the same bits,
    and an engine's checking pass has no more; None: any number. ``rows_apart``: each row is multiplied as it is alone,
    whatever their number, so that it need not be tested.
    """

    n_out: int
    n_in: int
    dtype: torch.dtype
    bias: torch.Tensor | None
    padded: Mapping[int, int] = MappingProxyType({})
    most: int | None = None
    rows_apart = False

    @abstractmethod
    def product(self, x: torch.Tensor) -> torch.Tensor:
        """[n, in] -> [n, out], a new tensor, without ``bias``."""

    @property
    def numbers(self) -> int:
        """How many weights a row takes."""
        return self.n_out * self.n_in

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[n, in] -> [n, out], a new tensor."""
        n = x.shape[0]
        y = self.product(padded_to(x, self.padded[n]))[:n] if n in self.padded else self.product(x)
        return y if self.bias is None else y.add_(self.bias)

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self(x).add_(other)

    def in_parts(self, x: torch.Tensor) -> torch.Tensor:
        """The product of any number of rows, ``most`` at a time."""
        if self.most is None or x.shape[0] <= self.most:
            return self(x)
        return torch.cat([self(part) for part in x.split(self.most)])


class DenseLinear(Linear):
    """The plain product, with its bias, in any dtype on any device."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight, self.dtype = weight.contiguous(), weight.dtype
        self.n_out, self.n_in = weight.shape
        self.bias, self._bias = None, bias  # the product adds it

    def product(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self._bias)

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if self._bias is not None or self.padded:  # one way for all numbers of rows
            return super().plus(x, other)
        return torch.addmm(other, x, self.weight.t())


class CompiledLinear(Linear):
    """[n, in] float32 -> [n, out] float32 by a matrix [out, in] of int8, float16, bfloat16 or float32
    (compiled/products.py).
    """

    dtype = torch.float32
    rows_apart = True

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        product: Product,
        scales: torch.Tensor | None = None,
    ) -> None:
        """``product``: of the weight's dtype. ``scales`` [out], of int8 weights."""
        self.n_out, self.n_in = weight.shape
        self.bias = None if bias is None else bias.float()
        self._packed, self.kernel = product.pack(weight), product
        blocks, steps, lanes = self._packed.shape
        self._scales = None if scales is None else F.pad(scales.float(), (0, blocks * lanes - self.n_out))
        self._more = steps * product.inputs - self.n_in

    def product(self, x: torch.Tensor) -> torch.Tensor:
        y = self.kernel(F.pad(x, (0, self._more)) if self._more else x, self._packed, self._scales)
        return y if y.shape[1] == self.n_out else y[:, : self.n_out]

    @property
    def fields(self) -> tuple[int, ...] | None:
        """Addresses of weights and scales, steps, blocks, and the bias's address; None for a matrix with padding."""
        blocks, steps, lanes = self._packed.shape
        if self._more or blocks * lanes != self.n_out:
            return None
        scales, bias = (0 if one is None else one.data_ptr() for one in (self._scales, self.bias))
        return self._packed.data_ptr(), scales, steps, blocks, bias


def exact_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The product that holds ``weight`` as it is: on a CPU a compiled one, where that can be had."""
    product = product_of(weight.dtype) if weight.device.type == "cpu" else None
    return DenseLinear(weight, bias) if product is None else CompiledLinear(weight, bias, product)


def half_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """float16's numbers of ``weight`` on a CPU, float32 activations and sums: in two bytes if that can be had, else in
    four. A matrix with a number beyond float16's largest stays in float32.
    """
    weight, bias = weight.float(), None if bias is None else bias.float()
    if not weight.abs().max() < torch.finfo(torch.float16).max:
        return exact_linear(weight, bias)
    held = weight.half()
    return exact_linear(held if product_of(held.dtype) else held.float(), bias)


class DenseHead:
    """[n, in] -> float32 logits [n, out] by the plain product, whose float32 sums a GPU returns unrounded."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight, self.bias = weight.contiguous(), bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight.dtype == torch.float32 or not x.is_cuda:
            y = x.float() @ self.weight.float().t()
        else:
            y = torch.mm(x, self.weight.t(), out_dtype=torch.float32)
        return y if self.bias is None else y + self.bias


class FloatHead:
    """[n, in] -> float32 logits [n, out] by a linear layer that computes in float32."""

    def __init__(self, linear: Linear) -> None:
        self.linear = linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear.in_parts(x.float())


def padded_to(x: torch.Tensor, rows: int) -> torch.Tensor:
    """``x`` [n, in] and copies of its first row, [rows, in]; of a single row a view."""
    return x.expand(rows, -1) if x.shape[0] == 1 else torch.cat([x, x[:1].expand(rows - x.shape[0], -1)])
