"""What a feature draft has beside its Llama trunk: projections of hidden states into its input.

EAGLE-3 (Li et al. 2025, section 3.1): at each position the draft reads its token's embedding and the target's hidden
states of the token before, after several layers; where the target has not been yet, its own last state there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..errors import UserError
from .formats import WeightFormat
from .linears import DenseLinear, Linear
from .slim import FEATURE_FILE


class Projections:
    """Hidden states -> what is added to the embedding of the next token, [n, width], in ``dtype``.

    ``weights``: "fuse.weight" [width, layers * width] for the target's states of that many layers, each divided by its
    root mean square, and "own.weight" [width, width] for the draft's last state; both read (x - centre) * scale, with
    "centre", "scale" [layers * width], "own_centre" and "own_scale" [width]. Raises UserError for others.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        layers: int,
        width: int,
        device: torch.device,
        dtype: torch.dtype,
        weight_format: WeightFormat | None = None,
    ) -> None:
        """``weight_format``: how the lean engine holds the matrices; None: as they are, in ``dtype``."""
        _check(weights, layers, width)
        self.dtype, self.layers, self.width = dtype, layers, width

        def product(weight: Tensor, bias: Tensor | None) -> Linear:
            if weight_format is None:
                return DenseLinear(weight, bias)
            return weight_format.linear([weight], bias, [None])

        def linear(name: str, centre: Tensor) -> Linear:
            weight = weights[f"{name}.weight"].to(device, dtype)
            made = product(weight, None)
            with torch.inference_mode():
                offset = made(centre.to(device, made.dtype)[None])[0].float()
            return product(weight, (-offset).to(dtype))

        scale, own_scale = weights["scale"].float(), weights["own_scale"].float()
        self.fuse = linear("fuse", weights["centre"].float() * scale)
        self.own = linear("own", weights["own_centre"].float() * own_scale)
        self._scale = (scale * width**0.5).view(layers, width).to(device)  # for |x| in place of its root mean square
        self._own_scale = own_scale.to(device)

    @property
    def linears(self) -> list[Linear]:
        return [self.fuse, self.own]

    @property
    def parameters(self) -> int:
        return sum(linear.n_in * linear.n_out for linear in self.linears)

    @torch.inference_mode()
    def of_target(self, states: Sequence[Tensor]) -> Tensor:
        """Of the target's states after each layer, each [n, width]."""
        x = torch.stack(list(states), 1).to(self._scale.device, torch.float32)
        size = torch.linalg.vector_norm(x, 2, -1, True).clamp_min_(1e-6)
        scaled = torch.mul(torch.div(x, size), self._scale).flatten(1)
        return self.fuse(scaled.to(self.fuse.dtype)).to(self.dtype)

    @torch.inference_mode()
    def of_own(self, state: Tensor) -> Tensor:
        """Of the draft's own last states, [n, width]."""
        return self.own((state * self._own_scale).to(self.own.dtype)).to(self.dtype)


def _check(weights: Mapping[str, Tensor], layers: int, width: int) -> None:
    wide = layers * width
    shapes = {"fuse.weight": (width, wide), "own.weight": (width, width), "centre": (wide,), "scale": (wide,)}
    shapes |= {"own_centre": (width,), "own_scale": (width,)}
    wrong = [name for name, shape in shapes.items() if name not in weights or tuple(weights[name].shape) != shape]
    if wrong:
        raise UserError(
            f"{FEATURE_FILE} does not hold the projections of {layers} layers of {width} ({', '.join(wrong)}): fetch "
            "the draft again, or correct its layers in pair.json."
        )


def read_projections(folder: Path) -> dict[str, Tensor]:
    """The projections in a draft's folder. Raises UserError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / FEATURE_FILE)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"The draft {folder.name} cannot read hidden states: its {FEATURE_FILE} is missing or damaged."
        ) from error
