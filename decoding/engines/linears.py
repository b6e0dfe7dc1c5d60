"""Linear layers of the lean engine: y = x W^T + b, plain and with the neighbouring operation fused in.

Three storage forms share one face: ``__call__(x)``, ``silu(x)``, ``times(x, other)`` and ``plus(x, other)``, with x of
[n, in] and the result [n, out].

- Dense: any dtype, ``torch.nn.functional.linear``.
- Packed: for the CPU, weights laid out once for oneDNN. One pass over 1 to 16 rows costs about the same (on one
  thread, 256 to 1,024 features: 32 to 60 microseconds in bfloat16, 60 to 100 in float32, where the plain product takes
  100 to 330), and a row's bits do not depend on how many rows come with it (checked in tests/test_models_lean.py).
- Int8: weight-only, one scale per output row; half the bytes to read. Row-invariant too. For drafts only: on a target
  it would be another model.

Int8Head, for a draft's large last product, rounds what comes in as well: its sums are of integers.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

_PACK_ROWS = 16  # the row count that oneDNN lays the weights out for


class Linear(Protocol):
    n_out: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def silu(self, x: torch.Tensor) -> torch.Tensor: ...

    def times(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor: ...

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor: ...


class DenseLinear:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight, self.bias = weight.contiguous(), bias
        self.n_out = weight.shape[0]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self(x))

    def times(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self(x) * other

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if self.bias is not None:
            return self(x) + other
        return torch.addmm(other, x, self.weight.t())


class PackedLinear:
    """Weights in oneDNN's blocked layout; the fused operation runs on the float32 sums."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.n_out = weight.shape[0]
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_ROWS)
        self.bias = bias
        self._unary = torch.ops.mkldnn._linear_pointwise.default
        self._binary = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._unary(x, self.weight, self.bias, "none", [], "")

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return self._unary(x, self.weight, self.bias, "swish", [], "")

    def times(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self._binary(x, other, self.weight, self.bias, "mul")

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self._binary(x, other, self.weight, self.bias, "add")


class Int8Linear:
    """Symmetric int8 weights with one bfloat16 scale per output row; activations stay bfloat16."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.n_out = weight.shape[0]
        self.weight, self.scale = _round_rows(weight)
        self.bias = None if bias is None else bias.to(torch.bfloat16)
        self._matmul = torch.ops.aten._weight_int8pack_mm.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self._matmul(x, self.weight, self.scale)
        return y if self.bias is None else y.add_(self.bias)

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self(x), inplace=True)

    def times(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self(x).mul_(other)

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self(x).add_(other)


class Int8Head:
    """[n, in] -> float32 logits [n, out]: int8 weights and int8 inputs, each row with a scale of its own.

    A draft's head holds most of its weights, and turning them into floats takes longer than reading them: for
    8,192 x 256 on one thread 72 microseconds, with integer products (AVX512-VNNI) 25. The inputs' rounding moves a
    logit by some 0.03 where logits reach 20. Sums of integers are exact, so a row's bits depend on nothing but the row.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.n_out = weight.shape[0]
        levels, scale = _round_rows(weight)
        self._columns, self.scale = levels.t(), scale.float()
        self.bias = None if bias is None else bias.float()
        self._matmul = torch.ops.aten._int_mm.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        step = torch.linalg.vector_norm(x, torch.inf, -1, True, dtype=torch.float32).mul_(1 / 127)
        levels = torch.div(x, step).round_().to(torch.int8)
        y = torch.mul(self._matmul(levels, self._columns), self.scale).mul_(step)
        return y if self.bias is None else y.add_(self.bias)


def _round_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``weight`` [out, in] as int8 levels, symmetric, and the bfloat16 scale [out] of each row."""
    scale = weight.float().abs().amax(dim=1).clamp_min(1e-8) / 127.0
    scale = scale.to(torch.bfloat16)
    levels = (weight.float() / scale.float()[:, None]).round().clamp(-127, 127)
    return levels.to(torch.int8).contiguous(), scale
