"""The loss over a reduced head, computed for a few hundred positions at a time so that their logits stay in the CPU's
cache: those of a whole batch over 8,192 ids take 130 MB, and a loss passes over them a dozen times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .losses import Known

ROWS = 256
"""Positions at a time."""


class _LossOverHead(torch.autograd.Function):
    """The loss of hidden states (n, width) under a frozen head (ids, width). Its gradient is computed in ``forward``,
    part by part.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, known: Known, loss: Callable[[Tensor, Known], Tensor], rows: int
    ) -> Tensor:
        total, gradient = torch.zeros(()), torch.empty_like(hidden)
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            with torch.enable_grad():
                logits = F.linear(hidden[part], head).float().requires_grad_()
                value = loss(logits, known[part])
                (slope,) = torch.autograd.grad(value, logits)
            gradient[part] = slope.to(hidden.dtype) @ head
            total += value.detach()
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0].to(gradient.dtype), None, None, None, None


def loss_over_head(
    hidden: Tensor, head: Tensor, known: Known, loss: Callable[[Tensor, Known], Tensor], rows: int = ROWS
) -> Tensor:
    """``loss``, summed over parts of ``rows`` positions; hidden (n, width) and the frozen head (ids, width) in bf16."""
    return _LossOverHead.apply(hidden, head, known, loss, rows)
