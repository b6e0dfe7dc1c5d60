"""Drafts that read the target's hidden states: their recipes, their training (one on a CPU, on a GPU several on
the same batches, as distil.py trains all drafts), and their figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from decoding.engines.projections import read_projections
from decoding.engines.slim import own_weights, read_head_ids
from decoding.errors import UserError
from training import DRAFTS, PAIR, TEXTS
from training.loop import Plan, Rates, last_of_log

from .data import Batch
from .distil import Learner, Run
from .drafts import save_slim, write_projections
from .feature import BlockDraft, FeatureDraft, HeadsDraft
from .measure import difference, figures_of_steps, rates_of
from .teacher import Teacher, gpu, model

UNROLLED, UNROLLED_ON_GPU = (1, 2), (3, 4)
"""Guesses of an iteration that are unrolled in training, batch after batch in turns."""
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
STANDARDISED_BY = 64
"""Texts whose states set the constants that standardise states."""


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

    def turns(self, on_gpu: bool) -> tuple[int, ...]:
        """The guesses of an iteration that are trained, in turns so many."""
        at_once = self.heads or self.block or not self.layers
        return (int(at_once),) if at_once else UNROLLED_ON_GPU if on_gpu else UNROLLED


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


READING = "-reading"
"""Ends the names of logs here, apart from those of drafts of text."""


def log_of(name: str) -> str:
    """The name of a draft's log."""
    return f"align-{name}{READING}"


def start_trunk(folder: Path, embedding: Tensor, bare: bool) -> LlamaForCausalLM:
    """A slim draft in float32 with the target's frozen embeddings; ``bare``: without its layers."""
    config = LlamaConfig.from_pretrained(folder)
    if bare:
        config.num_hidden_layers = 0
    trunk = LlamaForCausalLM(config).float()
    trunk.load_state_dict(own_weights(folder), strict=False)
    with torch.no_grad():
        trunk.model.embed_tokens.weight.copy_(embedding.bfloat16())
    trunk.tie_weights()
    trunk.model.embed_tokens.weight.requires_grad_(False)
    return trunk


class FeatureLearner(Learner):
    """One draft that reads states, or is compared with these."""

    def __init__(self, recipe: FeatureRecipe, teacher: Teacher) -> None:
        start = PAIR / "drafts" / recipe.start
        head_ids = read_head_ids(start)
        assert head_ids is not None, "shipped drafts have reduced heads"
        self.recipe = recipe
        trunk = start_trunk(start, teacher.target.model.embed_tokens.weight.detach(), bare=bool(recipe.heads))
        super().__init__(teacher, recipe.draft(trunk), head_ids, recipe.layers, recipe.turns(teacher.fresh))
        if recipe.block:
            self.draft.take(read_projections(start))

    def standardise(self, batch: Batch) -> None:
        """Sets the constants of a draft that has its own ones by the states in ``batch``."""
        if isinstance(self.draft, FeatureDraft) and self.layers and not self.recipe.block:
            valid = torch.zeros_like(batch.ids, dtype=torch.bool)
            valid.view(-1)[batch.places] = True
            self.draft.standardise(self.teacher.select(batch, self.layers), batch.ids, valid)

    def load(self, folder: Path) -> None:
        """Takes the weights of a trained draft of this recipe."""
        if not self.recipe.block:
            self.draft.trunk.load_state_dict(own_weights(folder), strict=False)
        if self.layers:
            self.draft.take(read_projections(folder))

    def save(self, folder: Path) -> None:
        """Writes the draft as a slim folder, with its projections beside if it has any."""
        trunk = PAIR / "drafts" / self.recipe.start if self.recipe.block else None
        save_slim(self.draft.trunk, folder, self.head_ids, trunk=trunk)
        if self.layers:
            write_projections(folder, self.draft.stored())


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
    teacher, recipes = Teacher(model(), TEXTS, gpu() if on_gpu else None), {name: RECIPES[name] for name in names}
    plan, *others = {_plan_of(recipe, teacher) for recipe in recipes.values()}
    if others:
        raise UserError("Drafts with layers and those without are trained at other rates: train them apart.")
    learners = {name: FeatureLearner(recipe, teacher) for name, recipe in recipes.items()}
    run = Run(READING, learners, plan)
    first = run.epochs.texts.batch(range(STANDARDISED_BY))
    for learner in learners.values():
        learner.standardise(first)
    run.train(minutes or inf, tokens)


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
        hits[name] = run.held(texts, recipe.plan.batch_tokens)
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
