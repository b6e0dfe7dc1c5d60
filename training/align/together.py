"""Trains several drafts on the same batches, which the target reads once for all of them: on a GPU, minutes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from decoding.errors import UserError
from training.loop import Rates, TimedRun, append_to_log
from training.paths import DRAFTS, TEXTS

from .distil import Plan
from .feature_run import MEASURED_EVERY, RECIPES, FeatureRun, log_of
from .measure import facts_of_texts, figures_of_steps
from .rounding import rounded_layers
from .teacher import Teacher, gpu, model

PLAN = Plan(
    Rates(muon=0.01, adam=1e-3, warmup=0.02, flat_until=0.25, last=0.0, projections=0.0025), 12288, rounded_from=0.7
)
"""For drafts with layers."""
ON_TOP = Plan(Rates(muon=0.01, adam=3e-3, warmup=0.02, flat_until=0.3, last=0.0, projections=0.02), 12288, 0.7)
"""For heads and blocks, whose projections start at zero."""
UNROLLED = (3, 4)
"""Guesses of an iteration, batch after batch in turns."""


class TogetherRun:
    """The training of the named drafts. Their losses are summed; since every matrix is in one draft, and Muon and AdamW
    do not depend on the scale of a gradient, each learns as it would alone.
    """

    def __init__(self, names: Sequence[str], teacher: Teacher) -> None:
        on_top = {bool(RECIPES[name].heads or RECIPES[name].block) for name in names}
        if len(on_top) > 1:
            raise UserError("Drafts with layers and those without are trained at other rates: train them apart.")
        self.plan = ON_TOP if on_top == {True} else PLAN
        self.teacher = teacher
        self.runs = {
            name: FeatureRun(name, RECIPES[name], teacher, plan=self.plan, unrolled=UNROLLED) for name in names
        }
        self.drafts = nn.ModuleDict({name: run.draft for name, run in self.runs.items()})
        device = torch.cuda.get_device_name() if teacher.device.type == "cuda" else teacher.device.type
        self.about: dict[str, float | str] = {"written": facts_of_texts(teacher.folder)["tokens"], "device": device}

    def train(self, minutes: float, tokens: int | None = None) -> None:
        """Trains for ``minutes``, or on ``tokens`` if given; what the same run did before counts."""
        settings = {"drafts": list(self.runs), "plan": self.plan, "target": self.teacher.mark}
        name = f"align-together-{'-'.join(self.runs)}"
        self.timed = TimedRun(name, self.drafts, 60 * minutes, settings, self.plan.rates, tokens)
        self.timed.checkpoint_every = MEASURED_EVERY
        torch.manual_seed(2)
        self.timed.train(self._loss, self.plan.batch_tokens, self.watch, self.save)

    def _loss(self, number: int) -> Tensor:
        with rounded_layers(self.drafts) if self.timed.share > self.plan.rounded_from else nullcontext():
            return torch.stack([run.loss_of(number) for run in self.runs.values()]).sum()

    def watch(self) -> float:
        """The rate of first guesses of the first draft; logs the figures of all."""
        rates = []
        for name, run in self.runs.items():
            found = figures_of_steps(run.rounded_hits(run.watched))
            rates.append(found["first"])
            append_to_log(log_of(name), self.timed.progress | self.about | found)
            print(name, {key: round(value, 4) for key, value in found.items()}, self.timed.progress, flush=True)
        return rates[0]

    def save(self) -> None:
        for name, run in self.runs.items():
            run.save(DRAFTS / name)


def train_together(names: Sequence[str], minutes: float, tokens: int | None = None) -> None:
    """Trains the named drafts into ``build/align/drafts``. Raises UserError: without a GPU, or drafts of two kinds."""
    unknown = [name for name in names if name not in RECIPES]
    if unknown:
        raise UserError(f"There is no draft {unknown[0]!r}. There are: {', '.join(RECIPES)}.")
    device = gpu()
    TogetherRun(names, Teacher(model(), TEXTS, device)).train(minutes, tokens)
