"""Distils drafts on the chat model's own texts (Goel et al. 2024, "Direct Alignment of Draft Model", section 3)."""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
from torch import Tensor

from decoding.engines.slim import is_slim, own_weights, read_head_ids
from decoding.errors import UserError
from training import DRAFTS, PAIR, TEXTS
from training.loop import Plan, Rates, TimedRun, last_of_log

from .data import Epochs, frequent_ids
from .drafts import RECIPES, Recipe, grow, save_slim, start_draft
from .losses import loss_over_head
from .measure import guesses, hidden_at
from .teacher import Teacher, model

FURTHER = "-further"
"""Ends the name of the run that trains a shipped draft further."""
WATCHED = 160
"""Texts of the validation split that are measured during training."""


NEW = Plan(Rates(muon=0.02, adam=3e-3, warmup=0.02, flat_until=0.3))
GROWN = Plan(Rates(muon=0.01, adam=1.5e-3, warmup=0.02, flat_until=0.3))
"""For a draft that starts from a shallower one."""
FINISHED = Plan(Rates(muon=0.0015, adam=1.5e-4, warmup=0.04, flat_until=0.25), 4096, 0.3)
"""For a finished draft on further texts; a step of Muon takes as long as 2,048 tokens, so batches are larger."""


class Run:
    """The distillation of one draft, in shuffled epochs over the texts."""

    def __init__(self, name: str, recipe: Recipe, teacher: Teacher, plan: Plan, start: Path | None = None) -> None:
        """``start``: the slim folder of a trained draft of this recipe, to train it further with the head it has."""
        self.name, self.recipe, self.teacher, self.plan = name, recipe, teacher, plan
        self.further = FURTHER if start else ""
        its_head = None if start is None else read_head_ids(start)
        self.head_ids = frequent_ids(teacher.splits["train"], recipe.head) if its_head is None else its_head
        self.epochs = Epochs(teacher.texts(teacher.splits["train"]), plan.batch_tokens)
        self.watched = teacher.texts(teacher.splits["validation"][:WATCHED])
        self.draft, self.projection = start_draft(recipe, teacher.target)
        if start is not None:
            self.draft.load_state_dict(own_weights(start), strict=False)
        elif recipe.grown_from:
            grow(self.draft, _weights_of(recipe.grown_from))
        self.draft.set_attn_implementation("eager")  # on short texts a third faster than torch's fused attention
        self.head = self.draft.lm_head.weight.detach()[self.head_ids].bfloat16()

    def train(self, minutes: float, tokens: int | None = None) -> None:
        """Trains for ``minutes`` or on ``tokens`` tokens, which both count what this run did before it was interrupted,
        and writes the draft into ``build/align/drafts``.
        """
        settings = {"recipe": self.recipe, "target": self.teacher.mark}
        self.timed = TimedRun(f"align-{self.name}{self.further}", self.draft, 60 * minutes, settings, self.plan, tokens)
        self.timed.train(self.loss_of, self.match_rate, self.save)

    def loss_of(self, number: int) -> Tensor:
        """The loss on batch ``number``, counted over all epochs."""
        batch = self.epochs.batch(number)
        hidden = hidden_at(self.draft, batch.ids, batch.places)
        return loss_over_head(hidden, self.head, batch.known(self.head_ids))

    def match_rate(self) -> float:
        """Share of the tokens of the watched greedy answers that are the draft's first choice; 0 without any."""
        self.draft.eval()
        found = guesses(self.draft, self.watched, self.head_ids, self.plan.batch_tokens)
        self.draft.train()
        greedy = [guess.hits for guess in found if guess.temperature == 0]
        return float(np.concatenate(greedy).mean()) if greedy else 0.0

    def save(self) -> None:
        save_slim(self.draft, DRAFTS / self.name, self.head_ids, self.recipe.target_layers, self.projection)


def _weights_of(name: str) -> dict[str, Tensor]:
    """The trained weights of the named draft. Raises UserError if it is not trained yet."""
    folder = DRAFTS / name
    if not (folder / "config.json").is_file():
        raise UserError(
            f"This draft starts from {name!r}: run `python -m training align draft {name} --minutes 40` first."
        )
    return own_weights(folder)


def distil(name: str, minutes: float = inf, tokens: int | None = None, further: bool = False) -> str:
    """Distils the named draft for ``minutes`` or on ``tokens``; returns a sentence on its match rate.

    ``further``: starts from the shipped draft of that name. Raises UserError.
    """
    if name not in RECIPES:
        raise UserError(f"There is no draft {name!r}. Drafts: {', '.join(RECIPES)}.")
    recipe, shipped = RECIPES[name], PAIR / "drafts" / name
    if further and not is_slim(shipped):
        raise UserError(f"There is no shipped draft {name!r} to train further. Train it without --further first.")
    plan = FINISHED if further else GROWN if recipe.grown_from else NEW
    run = Run(name, recipe, Teacher(model(), TEXTS), plan, shipped if further else None)
    run.train(minutes, tokens)
    return f"match rate {run.match_rate():.3f} on held-out texts"


def facts_of(name: str) -> dict[str, float]:
    """What the training logs of a draft, and of the draft that it grew from, record: steps, minutes, tokens."""
    logs = [last_of_log(f"align-{name}"), last_of_log(f"align-{name}{FURTHER}")]
    if before := RECIPES[name].grown_from:
        logs.append(facts_of(before))
    return {key: sum(log.get(key, 0) for log in logs) for key in ("steps", "minutes", "tokens")}


def tokens_seen(name: str) -> int:
    """Tokens that a draft was trained on, with repetitions."""
    return int(facts_of(name)["tokens"])
