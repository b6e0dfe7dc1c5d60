"""Number formats of training and measuring: products in bfloat16, drafts' matrices in four bits
(decoding/engines/formats/int4.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from decoding.engines.choosing import multiplies_bfloat16
from decoding.engines.formats.int4 import round_to_groups


def half(device: torch.device) -> torch.dtype:
    """bfloat16, or float32 where the CPU would imitate it, which is slower."""
    return torch.bfloat16 if device.type != "cpu" or multiplies_bfloat16() else torch.float32


def in_halves(device: torch.device) -> torch.autocast:
    """Products of float32 tensors in the format ``half`` inside the block."""
    return torch.autocast(device.type, torch.bfloat16, enabled=half(device) == torch.bfloat16)


def layer_matrices(draft: nn.Module) -> list[Tensor]:
    """The matrices that an engine rounds: all of the layers'."""
    named = draft.named_modules()
    return [module.weight for name, module in named if isinstance(module, nn.Linear) and not name.endswith("lm_head")]


def in_four_bits(weight: Tensor) -> Tensor:
    """``weight`` [out, in] as the engine holds it; float32."""
    return round_to_groups(weight).rounded().dequantised()


def round_layers(draft: nn.Module) -> None:
    """Rounds the layers' matrices for good."""
    for weight in layer_matrices(draft):
        weight.data = in_four_bits(weight.data)


@contextmanager
def rounded_layers(draft: nn.Module, due: bool = True) -> Iterator[None]:
    """Rounds the layers' matrices inside the block if it is ``due``, and restores them after it.

    A forward pass in it and a backward pass after it train the matrices for their rounded values: the gradient passes
    the rounding unchanged (straight-through, Jacob et al. 2018, "Quantization and Training of Neural Networks").
    """
    if not due:
        yield
        return
    matrices = layer_matrices(draft)
    kept = [weight.data for weight in matrices]
    round_layers(draft)
    try:
        yield
    finally:
        for weight, data in zip(matrices, kept):
            weight.data = data
