"""Number formats of weights: the modules of this package with a ``FORMAT``. There is no other list.

A format says how the lean engine holds a model's matrices, in which dtype it computes, and whether a target may use it
unasked. Which of them a model runs in is measured on the machine at hand (../choosing.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

import torch

from ...errors import UserError
from ..linears import Linear, exact_linear
from ..slim import Screen


class WeightFormat:
    """One number format.

    ``compute``: dtype of activations and of the KV cache, unless a device has a better one. ``layer_bytes``,
    ``head_bytes``, ``reduced_head_bytes``: of a weight in the layers, in the head, in a draft's reduced head.
    ``holds``: dtypes of checkpoints whose values it holds, so that a target may run in it unasked. ``general``: whether
    it is just a dtype, ``compute``, in which models also run on a GPU and, where they are not Llama-shaped, in
    transformers' modules.
    """

    name: str
    compute: torch.dtype
    layer_bytes: float
    head_bytes: float
    reduced_head_bytes: float
    holds: frozenset[str] = frozenset()
    general: bool = False

    @property
    def exact(self) -> bool:
        """Whether it holds the values of any checkpoint; the others round them."""
        return bool(self.holds)

    def compute_on(self, device: torch.device) -> torch.dtype:
        """``compute``, or what suits this device better."""
        return self.compute

    def is_fast_here(self) -> bool:
        """Whether this CPU has what its products are written for: a trial of others would be a waste of time."""
        return True

    def refusal(self, n_out: int, n_in: int) -> str | None:
        """Why a matrix [n_out, n_in] cannot be held so, or None."""
        return None

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """The product by a matrix [out, in], which is in ``compute``."""
        return exact_linear(weight, bias)

    def head(self, weight: torch.Tensor, bias: torch.Tensor | None, reduced: bool, screen: Screen | None) -> Linear:
        """The head's product, in float32 on a CPU; ``reduced``: a draft's, of some rows only; ``screen``: if it has
        one (int8.py), which a format need not use.
        """
        return self.linear(weight, bias)


@cache
def all_formats() -> Mapping[str, WeightFormat]:
    """The formats by name."""
    modules = [import_module(f"{__package__}.{module.name}") for module in iter_modules(__path__)]
    return MappingProxyType({module.FORMAT.name: module.FORMAT for module in modules})


def find_format(name: str) -> WeightFormat:
    """The format of that name. Raises UserError."""
    if name not in all_formats():
        raise UserError(f"The number format must be auto or one of {', '.join(all_formats())}, not {name[:40]}.")
    return all_formats()[name]
