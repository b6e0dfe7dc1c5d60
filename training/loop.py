"""The training loop: limited by time, resumable, logged.

It is not transformers' Trainer, which took 18% longer per step on two cores, takes one optimiser instead of two (Muon
and AdamW), and schedules by steps, not by time.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from decoding.errors import UserError
from decoding.files import replacing_file
from training import CHECKPOINTS, LOGS

from .drafts import rounded_layers


def set_rates(optimisers: list[torch.optim.Optimizer], factor: float) -> None:
    """Sets every group's rate to ``factor`` times its first rate."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group.setdefault("first_lr", group["lr"])
            group["lr"] = group["first_lr"] * factor


CHECKPOINT_EVERY = 300.0
"""Seconds between two measurements, each with weights and a checkpoint saved."""
CHECKPOINT_KEYS = ("settings", "model", "optimisers", "elapsed", "steps", "tokens")
LOG_EVERY = 20.0
LONGEST_STEP = 30.0
"""A step longer than this (a suspended machine) counts as this long: see ``TimedRun``."""


@dataclass(frozen=True)
class Rates:
    """Learning rates of Muon and AdamW over the run's time: warm-up, flat, then linear to zero.

    ``projections``: the rate of the matrices outside the layers, by default that of those within.
    """

    muon: float = 0.02
    adam: float = 3e-3
    warmup: float = 0.01
    flat_until: float = 0.5
    projections: float | None = None

    def optimisers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Muon (Jordan et al. 2024) for the matrices between embeddings and head; AdamW for these two and the norms.

        Raises UserError if torch has no Muon.
        """
        if not hasattr(torch.optim, "Muon"):
            raise UserError(f"Training needs torch 2.9 or later; this is {torch.__version__}. Install a later one.")
        outer = ("embed_tokens.weight", "lm_head.weight")
        matrices = {name: p for name, p in model.named_parameters() if p.ndim == 2 and not name.endswith(outer)}
        groups: list[dict[str, Any]] = [
            {"params": [p for name, p in matrices.items() if ".layers." in name], "lr": self.muon}
        ]
        others = [p for name, p in matrices.items() if ".layers." not in name]
        if others:
            groups.append({"params": others, "lr": self.muon if self.projections is None else self.projections})
        rest = [p for name, p in model.named_parameters() if name not in matrices]
        adam = torch.optim.AdamW(rest, lr=self.adam, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        return [torch.optim.Muon(groups, lr=self.muon, momentum=0.95, weight_decay=0.1), adam]

    def factor(self, share: float) -> float:
        """Factor on the rates at this share of the run."""
        if share < self.warmup:
            return max(share / self.warmup, 0.05)
        if share < self.flat_until:
            return 1.0
        return max(0.0, (1.0 - share) / (1.0 - self.flat_until))


@dataclass(frozen=True, slots=True)
class Plan:
    """How a draft is trained. ``rounded_from``: share of the run from which on its layers are in four bits, as a CPU
    runs them.
    """

    rates: Rates
    batch_tokens: int = 2048
    rounded_from: float = 0.85


def append_to_log(name: str, row: Mapping[str, float | str]) -> None:
    """Appends a row to the log of the run of that name."""
    path = LOGS / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def last_of_log(name: str) -> dict:
    """The final figures of a run's log: steps, minutes, tokens, and on what it was trained, if the log says so."""
    path = LOGS / f"{name}.jsonl"
    if not path.is_file():
        return {}
    last = json.loads(path.read_text().splitlines()[-1])
    about = {key: last[key] for key in ("written", "device") if key in last}
    return {"steps": last["step"], "minutes": round(last["elapsed"] / 60, 1), "tokens": last["tokens"]} | about


class TimedRun:
    """A resumable run of ``seconds`` of training time, or of ``wanted_tokens`` tokens if given.

    Time is the sum of the steps, so that a resumed run ends where an uninterrupted one would. ``settings`` identify the
    configuration: a checkpoint with other settings is refused. If they leave out the run's length, a longer run
    continues a finished shorter one: the rates rise to their value at that share of the longer run and decay again.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        seconds: float,
        settings: dict,
        plan: Plan,
        wanted_tokens: int | None = None,
    ) -> None:
        self.name, self.model, self.seconds, self.plan = name, model, seconds, plan
        self.wanted_tokens = wanted_tokens
        self.optimisers = plan.rates.optimisers(model)
        by = [type(optimiser).__name__ for optimiser in self.optimisers]  # whose states a checkpoint has
        self.settings = json.loads(json.dumps(settings | {"optimisers": by}, default=str))
        self.path = CHECKPOINTS / f"{name}.pt"
        self.elapsed, self.steps, self.tokens = 0.0, 0, 0
        self.resume()

    def resume(self) -> None:
        if not self.path.is_file():
            return
        try:
            state = torch.load(self.path, weights_only=True, map_location="cpu")
            saved = {key: state[key] for key in CHECKPOINT_KEYS}
        except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError) as error:
            raise UserError(f"The checkpoint {self.path.name} cannot be read. Remove it to start over.") from error
        if saved["settings"] != self.settings:
            raise UserError(
                f"The checkpoint {self.path.name} belongs to another configuration ({saved['settings']}, not "
                f"{self.settings}). Remove it to start over, or continue with the old settings."
            )
        self.model.load_state_dict(saved["model"])
        for optimiser, state in zip(self.optimisers, saved["optimisers"]):
            optimiser.load_state_dict(state)
        self.elapsed, self.steps, self.tokens = (saved[key] for key in ("elapsed", "steps", "tokens"))

    @property
    def share(self) -> float:
        """The share of the run that is done, from 0 to 1."""
        return self.tokens / self.wanted_tokens if self.wanted_tokens else self.elapsed / self.seconds

    def checkpoint(self) -> None:
        """Saves weights, optimiser states and how far the run is, atomically. Raises OSError."""
        state = {
            "settings": self.settings,
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "elapsed": self.elapsed,
            "steps": self.steps,
            "tokens": self.tokens,
        }
        # Through memory: torch hides a full disk's OSError when it writes the file itself.
        content = io.BytesIO()
        torch.save(state, content)
        with replacing_file(self.path) as file:
            file.write(content.getbuffer())

    def log(self, **figures: float) -> None:
        """Appends one JSON line to ``build/logs/<name>.jsonl``."""
        append_to_log(self.name, self.progress | figures)

    @property
    def progress(self) -> dict[str, float]:
        """How far the run is, as its log has it."""
        return {"step": self.steps, "elapsed": round(self.elapsed, 1), "tokens": self.tokens}

    def step(self, loss_of: Callable[[int], Tensor]) -> float:
        """One update on a batch; returns the loss, which is ``loss_of`` the number of the step."""
        set_rates(self.optimisers, self.plan.rates.factor(self.share))
        with rounded_layers(self.model, self.share > self.plan.rounded_from):
            loss = loss_of(self.steps)
        loss.backward()
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.steps += 1
        self.tokens += self.plan.batch_tokens
        return float(loss.detach())

    def train(self, loss_of: Callable[[int], Tensor], held_out: Callable[[], float], save: Callable[[], None]) -> None:
        """Trains to the end of the run; logs, saves usable weights and checkpoints.

        ``held_out``: the figure on held-back text. Weights are saved before the checkpoint, so that a
        checkpoint marked as done always has its weights.
        """
        if self.share >= 1:
            return
        torch.manual_seed(2)
        self.model.train()
        last_log = last_checkpoint = time.monotonic()
        recent: list[float] = []
        with tqdm(total=100, initial=round(100 * self.share), desc=self.name, unit="%") as bar:
            while self.share < 1:
                begun = time.monotonic()
                recent.append(self.step(loss_of))
                if not math.isfinite(recent[-1]):
                    raise UserError(f"{self.name}: the loss is no longer finite at step {self.steps}. Lower the rates.")
                self.elapsed += min(time.monotonic() - begun, LONGEST_STEP)
                bar.n = round(100 * self.share, 1)
                bar.update(0)
                now = time.monotonic()
                if now - last_log > LOG_EVERY:
                    self.log(loss=sum(recent) / len(recent))
                    bar.set_postfix(loss=f"{sum(recent) / len(recent):.3f}")
                    recent, last_log = [], now
                if now - last_checkpoint > CHECKPOINT_EVERY:
                    self.keep(held_out, save)
                    last_checkpoint = time.monotonic()
        self.keep(held_out, save)

    def keep(self, held_out: Callable[[], float], save: Callable[[], None]) -> None:
        self.log(held_out=held_out())
        save()
        self.checkpoint()
