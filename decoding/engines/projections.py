"""What a draft has that reads the target's hidden states.

A feature draft has projections of them into the input of its Llama trunk. EAGLE-3 (Li et al. 2025, section 3.1): at
each position the draft reads its token's embedding and the target's hidden states of the token before, after several
layers; where the target has not been yet, its own last state there. A block draft makes all its guesses in one pass
(DFlash: Chen, Liang and Liu 2026): in the places after the text it reads the text's last token again, each time with
another projection of what it read there.

Parallel heads read one state of the target, and nothing else (Medusa-1: Cai et al. 2024, section 2.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UserError
from .joined import join_projection
from .linears import Linear
from .slim import FEATURE_FILE

MakeLinear = Callable[[Tensor, Tensor | None], Linear]  # the product by a weight, with a bias, as an engine holds it
HEADS_WEIGHT, HEADS_BIAS = "heads.weight", "heads.bias"
BLOCK_WEIGHT, BLOCK_BIAS = "block.weight", "block.bias"


class Projections:
    """Hidden states -> what is added to the embedding of the next token, [n, width], in ``dtype``.

    ``weights``: "fuse.weight" [width, layers * width] for the target's states of that many layers, each divided by its
    root mean square, and "own.weight" [width, width] for the draft's last state; both read (x - centre) * scale, with
    "centre", "scale" [layers * width], "own_centre" and "own_scale" [width]. A block draft has BLOCK_WEIGHT
    [n - 1, width, width] and BLOCK_BIAS [n - 1, width] in place of what is "own". Raises UserError for others.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        layers: int,
        width: int,
        device: torch.device,
        dtype: torch.dtype,
        make: MakeLinear,
    ) -> None:
        self.n = 1 + len(weights.get(BLOCK_WEIGHT, ()))  # guesses of one pass
        _check(weights, layers, width, self.n - 1)
        self.dtype, self.width = dtype, width
        self.linears: list[Linear] = []

        def product(weight: Tensor, bias: Tensor) -> Linear:
            self.linears.append(make(weight, bias.to(dtype)))
            return self.linears[-1]

        def linear(name: str, centre: Tensor) -> Linear:
            weight = weights[f"{name}.weight"].to(device, dtype)
            made = make(weight, None)
            with torch.inference_mode():
                offset = made(centre.to(device, made.dtype)[None])[0].float()
            return product(weight, -offset)

        scale = weights["scale"].float()
        self.fuse = linear("fuse", weights["centre"].float() * scale)
        self._scale = (scale * width**0.5).view(layers, width).to(device)  # for |x| in place of its root mean square
        if self.n > 1:
            weight, bias = (weights[name].to(device, dtype).flatten(0, 1) for name in (BLOCK_WEIGHT, BLOCK_BIAS))
            self.block = product(weight, bias)
        else:
            own_scale = weights["own_scale"].float()
            self.own = linear("own", weights["own_centre"].float() * own_scale)
            self._own_scale = own_scale.to(device)
        # Each is one compiled call, where that can be had.
        self._joined_target = join_projection(self.fuse, self._scale, layers, self._fused)
        self._joined_own = join_projection(self.own, self._own_scale, 0, self._owned) if self.n == 1 else None

    def of_target(self, states: Sequence[Tensor]) -> Tensor:
        """Of the target's states after each layer, each [n, width]."""
        return (self._joined_target or self._fused)(*states)

    def of_own(self, state: Tensor) -> Tensor:
        """Of the draft's own last states, [n, width]."""
        return (self._joined_own or self._owned)(state)

    @torch.inference_mode()
    def _fused(self, *states: Tensor) -> Tensor:
        x = torch.stack(states, 1).to(self._scale.device, torch.float32)
        size = torch.linalg.vector_norm(x, 2, -1, True).clamp_min_(1e-6)
        scaled = torch.mul(torch.div(x, size), self._scale).flatten(1)
        return self.fuse.in_parts(scaled.to(self.fuse.dtype)).to(self.dtype)

    @torch.inference_mode()
    def _owned(self, state: Tensor) -> Tensor:
        return self.own((state * self._own_scale).to(self.own.dtype)).to(self.dtype)

    @torch.inference_mode()
    def of_block(self, fused: Tensor) -> Tensor:
        """Of what is added to the text's last token, [1, width]: what is added in later places, [n - 1, width]."""
        return self.block(fused.to(self.block.dtype)).view(self.n - 1, self.width).to(self.dtype)


class ParallelHeads:
    """The target's last hidden state x -> the states of ``n`` guesses, x + SiLU(W_k x + b_k), for the target's head.

    ``weights``: HEADS_WEIGHT [n, width, width] and HEADS_BIAS [n, width]. ``layers``: how many states they read, which
    must be 1. ``head``: states [n, width] -> float32 logits. Raises UserError for others.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        layers: int,
        width: int,
        device: torch.device,
        dtype: torch.dtype,
        make: MakeLinear,
        head: Callable[[Tensor], Tensor],
    ) -> None:
        self.n = len(weights[HEADS_WEIGHT])
        shapes = {HEADS_WEIGHT: (self.n, layers * width, width), HEADS_BIAS: (self.n, width)}
        _check_shapes(weights, shapes, layers, width)
        self.width, self._head, self._device = width, head, device
        weight, bias = (weights[name].to(device, dtype).flatten(0, 1) for name in (HEADS_WEIGHT, HEADS_BIAS))
        self.blocks = make(weight, bias)
        self.linears = [self.blocks]

    @torch.inference_mode()
    def guess(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Of a state [1, width]: the guesses' logits [n, ids], and the states [n, width] that these are read from."""
        x = state.to(self._device, self.blocks.dtype)
        states = F.silu(self.blocks(x)).view(self.n, self.width) + x
        return self._head(states), states


def _check(weights: Mapping[str, Tensor], layers: int, width: int, later: int) -> None:
    wide = layers * width
    shapes: dict[str, tuple[int, ...]] = {"fuse.weight": (width, wide), "centre": (wide,), "scale": (wide,)}
    if later:
        shapes |= {BLOCK_WEIGHT: (later, width, width), BLOCK_BIAS: (later, width)}
    else:
        shapes |= {"own.weight": (width, width), "own_centre": (width,), "own_scale": (width,)}
    _check_shapes(weights, shapes, layers, width)


def _check_shapes(
    weights: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], layers: int, width: int
) -> None:
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
