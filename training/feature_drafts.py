"""Drafts that read the target's hidden states: their recipes, their training (one on a CPU, on a GPU several on
the same batches), and their figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from decoding.engines.projections import read_projections
from decoding.engines.slim import own_weights, read_head_ids
from decoding.errors import UserError
from training import DRAFTS, PAIR, TEXTS
from training.loop import Plan, Rates, TimedRun, append_to_log, last_of_log

from .data import Batch, Epochs, Texts
from .distil import WATCHED
from .drafts import rounded_layers, save_slim, write_projections
from .feature import BlockDraft, FeatureDraft, HeadsDraft
from .losses import ROWS, loss_over_head
from .measure import SL, difference, facts_of_texts, figures_of_steps, rates_of
from .teacher import Teacher, gpu, model

UNROLLED, UNROLLED_ON_GPU = (1, 2), (3, 4)
"""Guesses of an iteration that are unrolled in training, batch after batch in turns."""
FADING = 0.8
"""Weight of a guess relative to the one before it (EAGLE-3's code)."""
TRAINED = Plan(Rates(muon=0.0003, adam=3e-5, warmup=0.03, flat_until=0.2, projections=0.0006), 3072, rounded_from=0.5)
"""For a trunk that is trained already: at three times this rate, its noise hides what the projections gain."""
YOUNG = Plan(Rates(muon=0.01, adam=1e-3, warmup=0.03, flat_until=0.3, projections=0.0025), 2048, 0.7)
"""For a trunk that has learned little so far. Projections that learn as fast as it does outgrow the embeddings."""
FROM_ZERO = Plan(Rates(muon=0.01, adam=3e-3, warmup=0.01, flat_until=0.3, projections=0.02), 2048, 0.7)
"""For heads that start at zero, with guesses that are all wrong."""
ON_GPU = Plan(Rates(muon=0.01, adam=1e-3, warmup=0.02, flat_until=0.25, projections=0.0025), 12288, rounded_from=0.7)
"""For drafts with layers."""
ON_TOP = Plan(Rates(muon=0.01, adam=3e-3, warmup=0.02, flat_until=0.3, projections=0.02), 12288, 0.7)
"""For heads and blocks on a GPU: their projections start at zero."""
GPU_ROWS = 4096
"""As losses.ROWS, on a GPU."""
WATCHED_ON_GPU = 800
STANDARDISED_BY = 64
"""Texts whose states set the constants that standardise states."""
MEASURED_EVERY = 300.0
"""Seconds between two measurements, each with weights saved."""


@dataclass(frozen=True, slots=True)
class FeatureRecipe:
    """A draft that reads the target's states after each of ``layers``; it starts from the layers of the shipped draft
    ``start``. Without ``layers`` it is what the others are compared with: it reads the text alone. ``heads``: so many
    parallel heads in place of any layer; of ``start`` they have the tokens that it may propose. ``block``: so many
    guesses in one pass; it starts from the projections of ``start``, too.
    """

    layers: tuple[int, ...]
    start: str
    plan: Plan = TRAINED
    heads: int = 0
    block: int = 0

    def draft(self, trunk: LlamaForCausalLM) -> FeatureDraft | HeadsDraft:
        """The draft on this trunk, before its training."""
        if self.heads:
            return HeadsDraft(trunk, self.heads)
        return BlockDraft(trunk, self.layers, self.block) if self.block else FeatureDraft(trunk, self.layers)

    def unrolled(self, batch: int, turns: Sequence[int]) -> int:
        """The guesses of an iteration that are trained on a batch of this number; ``turns``: in turns so many."""
        return self.heads or self.block or (turns[batch % len(turns)] if self.layers else 1)


DEPTHS = (2, 15, 27)
TEXT_ONLY = "one-layer"
"""What the others are compared with: it starts from itself, and reads the text alone."""
RECIPES = {
    "feature": FeatureRecipe(DEPTHS, "one-layer", YOUNG),
    "feature-last": FeatureRecipe((30,), "one-layer", YOUNG),
    "heads": FeatureRecipe((30,), "one-layer", FROM_ZERO, heads=4),
    "block": FeatureRecipe(DEPTHS, "feature", FROM_ZERO, block=4),
    TEXT_ONLY: FeatureRecipe((), "one-layer", YOUNG),
    "two-layers": FeatureRecipe((), "two-layers"),
    "three-layers": FeatureRecipe((), "three-layers"),
    "feature-two": FeatureRecipe(DEPTHS, "two-layers"),
    "feature-three": FeatureRecipe(DEPTHS, "three-layers"),
}


def log_of(name: str) -> str:
    """The name of a draft's run here, apart from that of a draft of text."""
    return f"align-{name}-reading"


def start_trunk(folder: Path, embedding: Tensor, bare: bool) -> LlamaForCausalLM:
    """A slim draft in float32 with the target's frozen embeddings; ``bare``: without its layers."""
    config = LlamaConfig.from_pretrained(folder)
    config._attn_implementation, config.dtype = "eager", "float32"
    if bare:
        config.num_hidden_layers = 0
    trunk = LlamaForCausalLM(config).float()
    trunk.load_state_dict({name: weight.float() for name, weight in own_weights(folder).items()}, strict=False)
    with torch.no_grad():
        trunk.model.embed_tokens.weight.copy_(embedding.bfloat16())
    trunk.tie_weights()
    trunk.model.embed_tokens.weight.requires_grad_(False)
    return trunk


class FeatureLearner:
    """One draft that reads states. Its batches are shared with those that learn beside it."""

    def __init__(self, recipe: FeatureRecipe, teacher: Teacher) -> None:
        start = PAIR / "drafts" / recipe.start
        head_ids = read_head_ids(start)
        assert head_ids is not None, "shipped drafts have reduced heads"
        self.recipe, self.teacher = recipe, teacher
        self.head_ids = head_ids.to(teacher.device)
        trunk = start_trunk(start, teacher.target.model.embed_tokens.weight.detach(), bare=bool(recipe.heads))
        self.draft = recipe.draft(trunk).to(teacher.device)
        self.head = trunk.lm_head.weight.detach()[self.head_ids].bfloat16()
        if recipe.block:
            self.draft.take(read_projections(start))

    def standardise(self, batch: Batch) -> None:
        """Sets the constants of a draft that has its own ones by the states in ``batch``."""
        if isinstance(self.draft, FeatureDraft) and not self.recipe.block:
            valid = torch.zeros_like(batch.ids, dtype=torch.bool)
            valid.view(-1)[batch.places] = True
            self.draft.standardise(self.teacher.select(batch.states, self.recipe.layers), batch.ids, valid)

    def load(self, folder: Path) -> None:
        """Takes the weights of a trained draft of this recipe."""
        if not self.recipe.block:
            own = {name: weight.float() for name, weight in own_weights(folder).items()}
            self.draft.trunk.load_state_dict(own, strict=False)
        if self.recipe.layers:
            self.draft.take(read_projections(folder))

    def loss_of(self, number: int, batch: Batch) -> Tensor:
        """The loss of each guess of the unrolled iterations, where those before hold, on the batch of that number."""
        known = batch.known(self.head_ids)
        guesses = self.recipe.unrolled(number, UNROLLED_ON_GPU if self.teacher.fresh else UNROLLED)
        states, rows = self.teacher.select(batch.states, self.recipe.layers), ROWS if batch.ids.is_cpu else GPU_ROWS
        total, weight = torch.zeros((), device=batch.ids.device), 1.0
        reached = torch.ones_like(batch.places, dtype=torch.bool)
        for step, last in enumerate(self.draft.unroll(batch.ids, states, guesses)):
            hidden = last.flatten(0, 1)[batch.places].bfloat16()
            total = total + weight * loss_over_head(hidden[reached], self.head, known[reached], rows)
            weight *= FADING
            if step + 1 < guesses:
                reached = self._next_reached(hidden, batch, reached)
                if not reached.any():
                    break
        return total

    @torch.no_grad()
    def _next_reached(self, hidden: Tensor, batch: Batch, reached: Tensor) -> Tensor:
        """Where the next guess is made: after guesses that hold."""
        place = reached.nonzero()[:, 0]
        held = torch.cat([self._first(hidden[p]) for p in place.split(1024)])
        token = batch.ids.flatten()[(batch.places + 1).clamp_max(batch.ids.numel() - 1)]
        good = torch.zeros_like(reached)
        good[place] = held == token[place]
        after = torch.zeros_like(good)
        after[1:] = good[:-1] & (batch.places[1:] == batch.places[:-1] + 1)
        return after

    def _first(self, hidden: Tensor) -> Tensor:
        return self.head_ids[torch.nn.functional.linear(hidden, self.head).argmax(-1)]

    @torch.no_grad()
    def rounded_hits(self, texts: Texts, tokens: int) -> list[np.ndarray]:
        """For each greedy answer (SL, n), whether the guess of each step for each token holds, with the matrices in
        four bits; in batches of at most ``tokens`` padded tokens.
        """
        found = []
        self.draft.eval()
        with rounded_layers(self.draft):
            for rows in texts.batches(tokens, 0):
                rows = [row for row in rows if texts.texts[row].temperature == 0]
                if not rows:
                    continue
                batch = texts.batch(rows)
                states = self.teacher.select(batch.states, self.recipe.layers)
                lasts = (last.flatten(0, 1)[batch.places] for last in self.draft.unroll(batch.ids, states, SL))
                firsts = [
                    torch.cat([self._first(part) for part in last.bfloat16().split(1024)]).cpu().numpy()
                    for last in lasts
                ]
                found += [np.stack([first[at] == ids for first in firsts]) for _, ids, at in texts.answers(rows)]
        self.draft.train()
        return found

    def save(self, folder: Path) -> None:
        """Writes the draft as a slim folder, with its projections beside if it has any."""
        trunk = PAIR / "drafts" / self.recipe.start if self.recipe.block else None
        save_slim(self.draft.trunk, folder, self.head_ids, trunk=trunk)
        if self.recipe.layers:
            write_projections(folder, self.draft.stored())


class TogetherRun:
    """The training of the named drafts. Their losses are summed; since every matrix is in one draft, and Muon and AdamW
    do not depend on the scale of a gradient, each learns as it would alone.
    """

    def __init__(self, names: Sequence[str], teacher: Teacher) -> None:
        self.plan, *others = {_plan_of(RECIPES[name], teacher) for name in names}
        if others:
            raise UserError("Drafts with layers and those without are trained at other rates: train them apart.")
        self.teacher = teacher
        self.epochs = Epochs(teacher.texts(teacher.splits["train"], with_states=True), self.plan.batch_tokens)
        watched = teacher.splits["validation"] + teacher.splits["policies"]
        self.watched = teacher.texts(watched[: WATCHED_ON_GPU if teacher.fresh else WATCHED // 2], with_states=True)
        self.runs = {name: FeatureLearner(RECIPES[name], teacher) for name in names}
        self.drafts = nn.ModuleDict({name: run.draft for name, run in self.runs.items()})
        first = self.epochs.texts.batch(range(STANDARDISED_BY))
        for run in self.runs.values():
            run.standardise(first)
        self.about: dict[str, float | str] = {"written": facts_of_texts(teacher.folder)["tokens"]}
        if teacher.fresh:
            on_cuda = teacher.device.type == "cuda"
            self.about["device"] = torch.cuda.get_device_name() if on_cuda else teacher.device.type

    def train(self, minutes: float, tokens: int | None) -> None:
        """Trains for ``minutes``, or on ``tokens`` if given; what the same run did before counts."""
        recipes = {name: RECIPES[name] for name in self.runs}
        settings = {"drafts": recipes, "plan": self.plan, "target": self.teacher.mark}
        name = f"align-reading-{'-'.join(self.runs)}"
        self.timed = TimedRun(name, self.drafts, 60 * minutes, settings, self.plan, tokens)
        self.timed.checkpoint_every = MEASURED_EVERY
        self.timed.train(self._loss, self.watch, self.save)

    def _loss(self, number: int) -> Tensor:
        batch = self.epochs.batch(number)
        return torch.stack([run.loss_of(number, batch) for run in self.runs.values()]).sum()

    def watch(self) -> float:
        """The rate of first guesses of the first draft; logs the figures of all."""
        rates = []
        for name, run in self.runs.items():
            found = figures_of_steps(run.rounded_hits(self.watched, self.plan.batch_tokens))
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
    if bool(minutes) == bool(tokens):
        raise UserError("Say how long to train: give either --minutes or --tokens.")
    teacher = Teacher(model(), TEXTS, gpu() if on_gpu else None)
    TogetherRun(names, teacher).train(minutes or inf, tokens)


def measure_trained(names: Sequence[str]) -> dict[str, dict]:
    """Figures of each named draft, trained here, its matrices in four bits, on the answers of the validation split;
    of those that read states also ``over``: its first guesses over those of the one that reads the text alone.
    """
    teacher, hits, found = Teacher(model(), TEXTS), dict[str, list[np.ndarray]](), {}
    texts = teacher.texts(teacher.splits["validation"], with_states=True)
    for name in names:
        recipe = RECIPES[name]
        run = FeatureLearner(recipe, teacher)
        run.load(DRAFTS / name)
        hits[name] = run.rounded_hits(texts, recipe.plan.batch_tokens)
        about = {"start": "zero" if recipe.heads else recipe.start, "layers": list(recipe.layers)}
        found[name] = about | figures_of_steps(hits[name]) | {"match": rates_of(_firsts(hits[name]))}
        found[name] |= last_of_log(log_of(name))
    for name in hits.keys() - {TEXT_ONLY}:
        one, other = RECIPES[name], RECIPES[TEXT_ONLY]
        if TEXT_ONLY in hits and (one.start, one.plan) == (other.start, other.plan):
            found[name]["over"] = difference(_firsts(hits[name]), _firsts(hits[TEXT_ONLY]))
    return found


def _firsts(hits: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [each[0] for each in hits]
