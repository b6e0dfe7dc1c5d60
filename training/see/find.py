"""First step: the encoder alone learns to find things: where, which kind, which colour. Resumes where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.engines.picture_encoder import GRID, Cells, Encoder, has_weights, load_encoder, pixels
from decoding.pictures.draw import draw
from decoding.pictures.scenes import COLORS, SIDE, Scene, kinds

from .scenes import training_scenes
from .states import Cooling, train

ENCODER = "encoder"
BATCH = 32
RATE = 1e-3
WARM_UP = 100
_CELL = SIDE // GRID


KINDS = {name: number for number, name in enumerate(kinds())}
COLOR_NUMBERS = {name: number for number, name in enumerate(("", *COLORS))}


def truth(scenes: Sequence[Scene]) -> Tensor:
    """(things, 6): picture, cell, kind, colour, and x and y inside the cell."""
    return torch.tensor(
        [
            (
                picture,
                thing.y // _CELL * GRID + thing.x // _CELL,
                KINDS[thing.what.kind],
                COLOR_NUMBERS[thing.what.color],
                thing.x % _CELL / _CELL,
                thing.y % _CELL / _CELL,
            )
            for picture, scene in enumerate(scenes)
            for thing in scene.things
        ]
    )


def finding_loss(cells: Cells, true: Tensor) -> Tensor:
    """Binary cross-entropy over all cells; cross-entropies and the squared error of the place where things are."""
    picture, cell, kind, color = true[:, :4].long().T
    present = torch.zeros_like(cells.thing)
    present[picture, cell] = 1
    found = F.binary_cross_entropy_with_logits(cells.thing, present, reduction="sum") / len(true)
    named = F.cross_entropy(cells.kind[picture, cell], kind) + 0.5 * F.cross_entropy(cells.color[picture, cell], color)
    return found + named + F.mse_loss(cells.place[picture, cell], true[:, 4:])


def train_encoder(states: Path, minutes: float, shipped: Path) -> Encoder:
    """Trains for ``minutes`` (earlier runs included) and keeps the state in ``states``.

    It starts from the weights in ``shipped``, where there are any.
    """
    encoder = load_encoder(shipped).train() if has_weights(shipped) else Encoder()
    optimiser = torch.optim.AdamW(encoder.parameters(), RATE, weight_decay=0.01)
    train(states, ENCODER, encoder, Cooling(optimiser, WARM_UP), minutes, lambda step: _losses(encoder, step))
    return encoder


def _losses(encoder: Encoder, step: int) -> Iterator[tuple[Tensor, Callable[[], str]]]:
    scenes = training_scenes(seed=step)
    while True:
        batch = list(islice(scenes, BATCH))
        with torch.autocast("cpu", torch.bfloat16):
            cells = encoder(pixels([draw(scene) for scene in batch]).to(memory_format=torch.channels_last))
        true = truth(batch)
        loss = finding_loss(cells, true)
        yield loss, partial(_figures, loss, cells, true)


def _figures(loss: Tensor, cells: Cells, true: Tensor) -> str:
    """The loss, how many kinds are right, and in how many pictures the number of things."""
    picture, cell, kind = true[:, :3].long().T
    right = (cells.kind[picture, cell].argmax(-1) == kind).float().mean()
    seen = (cells.thing > 0).sum(-1) == torch.bincount(picture, minlength=BATCH)
    return f"loss {loss:.3f} kinds {right:.3f} counts {seen.float().mean():.3f}"
