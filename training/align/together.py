"""Trains drafts that read the target's hidden states: on a CPU one, on a GPU several on the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor, nn

from decoding.errors import UserError
from training.loop import Rates, TimedRun, append_to_log
from training.paths import DRAFTS, TEXTS

from .distil import Plan
from .feature_drafts import RECIPES, FeatureLearner, FeatureRecipe, log_of
from .measure import facts_of_texts, figures_of_steps
from .rounding import rounded_layers
from .teacher import Teacher, gpu, model

ON_GPU = Plan(Rates(muon=0.01, adam=1e-3, warmup=0.02, flat_until=0.25, projections=0.0025), 12288, rounded_from=0.7)
"""For drafts with layers."""
ON_TOP = Plan(Rates(muon=0.01, adam=3e-3, warmup=0.02, flat_until=0.3, projections=0.02), 12288, 0.7)
"""For heads and blocks on a GPU: their projections start at zero."""
MEASURED_EVERY = 300.0
"""Seconds between two measurements, each with weights saved."""


class TogetherRun:
    """The training of the named drafts. Their losses are summed; since every matrix is in one draft, and Muon and AdamW
    do not depend on the scale of a gradient, each learns as it would alone.
    """

    def __init__(self, names: Sequence[str], teacher: Teacher) -> None:
        self.plan, *others = {_plan_of(RECIPES[name], teacher) for name in names}
        if others:
            raise UserError("Drafts with layers and those without are trained at other rates: train them apart.")
        self.teacher = teacher
        self.runs = {name: FeatureLearner(RECIPES[name], teacher, self.plan) for name in names}
        self.drafts = nn.ModuleDict({name: run.draft for name, run in self.runs.items()})
        self.about: dict[str, float | str] = {"written": facts_of_texts(teacher.folder)["tokens"]}
        if teacher.fresh:
            on_cuda = teacher.device.type == "cuda"
            self.about["device"] = torch.cuda.get_device_name() if on_cuda else teacher.device.type

    def train(self, minutes: float, tokens: int | None) -> None:
        """Trains for ``minutes``, or on ``tokens`` if given; what the same run did before counts."""
        recipes = {name: RECIPES[name] for name in self.runs}
        settings = {"drafts": recipes, "plan": self.plan, "target": self.teacher.mark}
        name = f"align-reading-{'-'.join(self.runs)}"
        self.timed = TimedRun(name, self.drafts, 60 * minutes, settings, self.plan.rates, tokens)
        self.timed.checkpoint_every = MEASURED_EVERY
        torch.manual_seed(2)
        self.timed.train(self._loss, self.plan.batch_tokens, self.watch, self.save)

    def _loss(self, number: int) -> Tensor:
        with rounded_layers(self.drafts, self.timed.share > self.plan.rounded_from):
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


def _plan_of(recipe: FeatureRecipe, teacher: Teacher) -> Plan:
    """The recipe's own plan is for a CPU."""
    if not teacher.fresh:
        return recipe.plan
    return ON_TOP if recipe.heads or recipe.block else ON_GPU


def train(names: Sequence[str], minutes: float, tokens: int | None, on_gpu: bool = False) -> None:
    """Trains the named drafts into ``build/align/drafts`` for ``minutes``, or on ``tokens`` if given.

    ``on_gpu``: the target reads each batch anew there; without it, batches have the states that were kept. Raises
    UserError: without a GPU, or for drafts of two kinds.
    """
    unknown = [name for name in names if name not in RECIPES]
    if unknown:
        raise UserError(f"There is no draft {unknown[0]!r} that reads states. There are: {', '.join(RECIPES)}.")
    if not (minutes or tokens):
        raise UserError("Say how long to train: give --minutes or --tokens.")
    teacher = Teacher(model(), TEXTS, gpu() if on_gpu else None)
    TogetherRun(names, teacher).train(minutes or inf, tokens)
