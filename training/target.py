"""The target: trained shallow first, where tokens are cheap, then deepened with identity layers and trained further.

Depth makes the target expensive relative to the draft; growing to it costs less than starting with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from training.architecture import Shape, deepen, save_model
from training.corpus import read_documents
from training.loop import Rates, TimedRun, compiled, device, mean_loss, next_token_loss, on_device, set_attention
from training.places import BUILD
from training.tokenizer import CONTEXT, load_tokenizer
from training.tokens import TOKENS, Windows, read_tokens, write_tokens

TARGET = BUILD / "target"
SHORT = 256
RESERVED_FOR_LONG = 6_000_000
"""Tokens at the end of the stream, seen only at full context at the end of the training."""
SECOND_RATE = 0.35
"""The deepened target's initial rates, relative to those of the first part."""


@dataclass(frozen=True)
class Plan:
    """The training plan: shares of the time, sizes, and tokens per step."""

    first: Shape = Shape(layers=8, hidden=256, intermediate=704)
    layers: int = 16
    first_share: float = 0.78
    long_share: float = 0.4
    """Share of the second part that trains at full context."""
    tokens_per_step: int = 4096


def encode_corpus() -> None:
    """Writes the token streams of both halves of the corpus unless they exist."""
    for name in ("held_out", "train"):
        if not (TOKENS / f"{name}.bin").is_file():
            write_tokens(name, [document.text for document in read_documents(name)], load_tokenizer())


def held_out_windows(count: int = 48, length: int = SHORT) -> torch.Tensor:
    """A fixed sample of held-out windows, shape (count, length + 1)."""
    return Windows(read_tokens("held_out"), length, seed=1).batch(0, count)


class TargetTraining:
    """The parts of the target's training; each resumes after being killed."""

    def __init__(self, minutes: float, plan: Plan | None = None) -> None:
        self.seconds, self.plan = minutes * 60, plan or Plan()
        encode_corpus()
        self.tokenizer, self.held_out = load_tokenizer(), held_out_windows()
        stream = read_tokens("train")
        cut = len(stream) - min(RESERVED_FOR_LONG, len(stream) // 4)
        self.short, self.long = Windows(stream[:cut], SHORT), Windows(stream[cut:], CONTEXT)

    def train_part(self, run: TimedRun, windows: Windows, until: float, target: Path) -> None:
        """Trains the run's model at one context length until a share of its time has passed."""
        size = max(1, self.plan.tokens_per_step // windows.length)
        set_attention(run.model, windows.length)
        step = compiled(lambda ids: next_token_loss(run.model, ids))
        run.train(
            loss_of=lambda start: step(windows.batch(start, size).to(device())),
            shape=(size, windows.length),
            held_out=lambda: mean_loss(run.model, self.held_out),
            save=lambda: save_model(run.model, target, self.tokenizer),
            until=until,
        )

    def train_first(self) -> TimedRun:
        """The shallow target at short context; the rates decay to those of the second part."""
        torch.manual_seed(0)
        model = on_device(self.plan.first.build())
        run = TimedRun(
            "target-first",
            model,
            self.plan.first_share * self.seconds,
            {"shape": self.plan.first, "minutes": self.seconds / 60},
            Rates(flat_until=0.55, last=SECOND_RATE),
        )
        self.train_part(run, self.short, 1.0, TARGET)
        return run

    def train_deepened(self, first: TimedRun) -> None:
        """The deepened target: short context, then full context; the rates decay to their end."""
        model = on_device(deepen(first.model, self.plan.layers))
        run = TimedRun(
            "target-deepened",
            model,
            (1 - self.plan.first_share) * self.seconds,
            {"layers": self.plan.layers, "minutes": self.seconds / 60},
            Rates(SECOND_RATE * Rates.muon, SECOND_RATE * Rates.adam, 0.03, 0.05, 0.02),
        )
        run.position = run.position or first.position
        self.train_part(run, self.short, 1.0 - self.plan.long_share, TARGET)
        self.train_part(run, self.long, 1.0, TARGET)


def train_target(minutes: float, plan: Plan | None = None) -> Path:
    """Trains the target for ``minutes`` in total; returns its folder, which holds usable weights from early on."""
    training = TargetTraining(minutes, plan)
    training.train_deepened(training.train_first())
    return TARGET
