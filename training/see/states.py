"""The training loop of all steps, and their states on disk: weights, the optimiser's moments, steps and minutes.

A killed run goes on from the last state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from training.files import replacing_file

EVERY = 60.0
"""Seconds between two states."""


@dataclass
class Clock:
    """Steps and seconds of training so far, earlier runs included, against the minutes wanted."""

    before: tuple[int, float]
    minutes: float
    start: float = field(default_factory=time.monotonic)
    step: int = field(init=False)
    _last: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.step = self.before[0]

    @property
    def seconds(self) -> float:
        return self.before[1] + time.monotonic() - self.start

    @property
    def done(self) -> bool:
        """Every run takes at least one step."""
        return self.step > self.before[0] and self.seconds >= 60 * self.minutes

    @property
    def cooling(self) -> float:
        """The factor of the learning rate: half a cosine from 1 to 0.02 over the minutes."""
        return 0.02 + 0.49 * (1 + math.cos(math.pi * min(1.0, self.seconds / (60 * self.minutes))))

    def tick(self) -> bool:
        """Counts a step. True once every EVERY seconds: time to save."""
        self.step += 1
        if time.monotonic() - self._last < EVERY:
            return False
        self._last = time.monotonic()
        return True

    def __str__(self) -> str:
        return f"step {self.step} minute {self.seconds / 60:.1f}"


def train(
    file: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    minutes: float,
    warm_up: int,
    losses_from: Callable[[int], Iterator[tuple[Tensor, Callable[[], str]]]],
) -> None:
    """Trains ``model`` for ``minutes``, earlier runs included; the state is kept in ``file``.

    ``losses_from(step)`` yields, from the step of that number on, the loss of each and what to tell of it now and then.
    ``warm_up``: the steps until the optimiser's rates are reached.
    """
    clock = Clock(load_state(file, model, optimiser), minutes)
    rates = [group["lr"] for group in optimiser.param_groups]
    losses = losses_from(clock.step)
    while not clock.done:
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * min(1, (clock.step + 1) / warm_up) * clock.cooling
        loss, figures = next(losses)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if clock.tick():
            print(f"{clock} {figures()}", flush=True)
            save_state(file, model, optimiser, clock)
    save_state(file, model, optimiser, clock)


def save_state(file: Path, model: nn.Module, optimiser: torch.optim.Optimizer, clock: Clock) -> None:
    """Weights and moments, with steps and seconds as metadata. Raises UserError if the file cannot be written."""
    tensors = {f"model.{name}": value.detach().contiguous() for name, value in model.state_dict().items()}
    for number, moments in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{name}": value.clone().contiguous() for name, value in moments.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing_file(file, "wb") as whole:
        whole.write(save(tensors, {"step": str(clock.step), "seconds": str(clock.seconds)}))


def load_state(file: Path, model: nn.Module, optimiser: torch.optim.Optimizer | None = None) -> tuple[int, float]:
    """Restores what :func:`save_state` wrote; steps and seconds so far, zero if there is no file."""
    if not file.is_file():
        return 0, 0.0
    with safe_open(file, "pt") as kept:
        tensors = {name: kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118 (it is no mapping)
        about = kept.metadata()
    model.load_state_dict({name[6:]: value for name, value in tensors.items() if name.startswith("model.")})
    if optimiser:
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimiser."):
                _, number, moment = name.split(".")
                state.setdefault(int(number), {})[moment] = value
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return int(about["step"]), float(about["seconds"])
