"""The training of all steps: AdamW, whose rates warm up and cool down. A killed run goes on from its checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from training.loop import TimedRun, checkpoint_file, read_checkpoint

LossesFrom = Callable[[int], Iterator[tuple[Tensor, Callable[[], str]]]]


@dataclass(frozen=True)
class Cooling:
    """``optimiser`` at its rates, which are reached after ``warm_up`` steps and cool down by half a cosine to 0.02."""

    optimiser: torch.optim.Optimizer
    warm_up: int
    clip: float | None = 1.0

    def optimisers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [self.optimiser]

    def factor(self, share: float, steps: int) -> float:
        cooled = 0.02 + 0.49 * (1 + math.cos(math.pi * min(1.0, share)))
        return min(1, (steps + 1) / self.warm_up) * cooled


def train(
    folder: Path, name: str, model: nn.Module, schedule: Cooling, minutes: float, losses_from: LossesFrom
) -> None:
    """Trains ``model`` for ``minutes``, earlier runs included; the state is kept in ``folder``.

    ``losses_from(step)`` yields, from the step of that number on, the loss of each and what to tell of it now and then.
    """
    run = TimedRun(name, model, 60 * minutes, {}, schedule, folder=folder)
    losses, untold = losses_from(run.steps), list[Callable[[], str]]()

    def loss_of(number: int) -> Tensor:
        loss, figures = next(losses)
        untold[:] = [figures]
        return loss

    def tell() -> None:
        for figures in untold:
            print(f"step {run.steps} minute {run.elapsed / 60:.1f} {figures()}", flush=True)
        untold.clear()

    run.train(loss_of, 1, None, tell)


def load_state(folder: Path, name: str, model: nn.Module) -> tuple[int, float] | None:
    """Takes the weights that the step of that name reached; its steps and seconds, None if it was not trained here."""
    if not (file := checkpoint_file(folder, name)).is_file():
        return None
    saved = read_checkpoint(file)
    model.load_state_dict(saved["model"])
    return saved["steps"], saved["elapsed"]
