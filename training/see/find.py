"""First step: the encoder alone learns to find things: where, which kind, which colour. Resumes where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.engines.picture_encoder import GRID, Cells, Encoder, has_weights, load_encoder, pixels
from decoding.pictures.draw import draw
from decoding.pictures.scenes import COLORS, SIDE, Scene, kinds

from .scenes import training_scenes
from .states import Clock, load_state, save_state

ENCODER = "encoder.safetensors"
BATCH = 32
RATE = 1e-3
WARM_UP = 100
_CELL = SIDE // GRID


def truth(scenes: Sequence[Scene]) -> Tensor:
    """(things, 6): picture, cell, kind, colour, and x and y inside the cell."""
    number = {name: index for index, name in enumerate(kinds())}
    color = {name: index for index, name in enumerate(("", *COLORS))}
    return torch.tensor(
        [
            (
                picture,
                thing.y // _CELL * GRID + thing.x // _CELL,
                number[thing.what.kind],
                color[thing.what.color],
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
    clock = Clock(load_state(states / ENCODER, encoder, optimiser), minutes)
    scenes = training_scenes(seed=clock.step)
    while not clock.done:
        batch = list(islice(scenes, BATCH))
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1, (clock.step + 1) / WARM_UP) * clock.cooling
        with torch.autocast("cpu", torch.bfloat16):
            cells = encoder(pixels([draw(scene) for scene in batch]).to(memory_format=torch.channels_last))
        true = truth(batch)
        loss = finding_loss(cells, true)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimiser.step()
        if clock.tick():
            picture, cell, kind = true[:, :3].long().T
            right = (cells.kind[picture, cell].argmax(-1) == kind).float().mean()
            seen = (cells.thing > 0).sum(-1) == torch.bincount(picture, minlength=BATCH)
            print(f"{clock} loss {loss:.3f} kinds {right:.3f} counts {seen.float().mean():.3f}", flush=True)
            save_state(states / ENCODER, encoder, optimiser, clock)
    save_state(states / ENCODER, encoder, optimiser, clock)
    return encoder
