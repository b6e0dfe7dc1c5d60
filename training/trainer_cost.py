"""The cost of a step of transformers' Trainer compared with a step of this project's loop.

Same model, batch, windows and optimiser (AdamW; Trainer takes one optimiser, this project uses two), both compiled and
in bf16 autocast, in turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time

import torch
from transformers import LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from training.architecture import Shape
from training.loop import compiled, device, next_token_loss, on_device, set_attention
from training.target import SHORT, Plan

WARM_UP = 3
"""Steps that are not counted: compilation and first allocations."""


class _Stopwatch(TrainerCallback):
    """Times at which the steps of a Trainer end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *arguments: object, **named: object) -> None:
        self.ends.append(time.perf_counter())


def make_model(shape: Shape) -> LlamaForCausalLM:
    """The model that both train, with the attention of this project's loop."""
    torch.manual_seed(0)
    model = on_device(shape.build())
    set_attention(model, SHORT)
    return model


def time_trainer(shape: Shape, ids: torch.Tensor, steps: int) -> float:
    """Median seconds of a step of transformers' Trainer on windows ``ids`` (batch, length)."""
    watch = _Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps + WARM_UP,
            per_device_train_batch_size=len(ids),
            bf16=True,
            torch_compile=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            optim="adamw_torch_fused",
            use_cpu=device().type == "cpu",
            learning_rate=1e-4,
        )
        rows = [{"input_ids": row, "labels": row} for row in ids] * (steps + WARM_UP)
        Trainer(make_model(shape), arguments, train_dataset=rows, callbacks=[watch]).train()
    return statistics.median(b - a for a, b in zip(watch.ends[WARM_UP - 1 :], watch.ends[WARM_UP:]))


def time_loop(shape: Shape, ids: torch.Tensor, steps: int) -> float:
    """Median seconds of a step of this project's loop, with AdamW alone."""
    model = make_model(shape)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loss_of = compiled(lambda windows: next_token_loss(model, windows))
    windows = torch.cat([ids, ids[:, :1]], dim=1).to(device())
    times = []
    for _ in range(steps + WARM_UP):
        begun = time.perf_counter()
        loss_of(windows).backward()
        adam.step()
        adam.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - begun)
    return statistics.median(times[WARM_UP:])


def compare(steps: int, rounds: int = 2, shape: Shape | None = None) -> list[str]:
    """Times both in turns, ``rounds`` times; returns one sentence for each."""
    shape = shape or Plan().first
    ids = torch.randint(1, 8192, (Plan().tokens_per_step // SHORT, SHORT), generator=torch.Generator().manual_seed(0))
    pairs = [(time_loop(shape, ids, steps), time_trainer(shape, ids, steps)) for _ in range(rounds)]
    loop, trainer = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    return [
        f"This project's loop: {1e3 * loop:.0f} ms a step ({ids.numel() / loop:,.0f} tokens/s).",
        f"transformers' Trainer: {1e3 * trainer:.0f} ms a step ({ids.numel() / trainer:,.0f} tokens/s), "
        f"{trainer / loop - 1:+.0%}.",
    ]
