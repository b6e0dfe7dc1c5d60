"""Distils drafts on the chat model's own texts (Goel et al. 2024, "Direct Alignment of Draft Model", section 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from decoding.engines.slim import is_slim, own_weights, read_head_ids
from decoding.errors import UserError
from training.loop import Rates, TimedRun, last_of_log
from training.paths import DRAFTS, PAIR, TEXTS

from .data import Epochs, frequent_ids
from .draft_folder import save_slim
from .losses import LOSSES, OF_THE_BATCH, ROWS, loss_over_head
from .measure import Guesses, Interval, difference, guesses, hidden_at, rates_of
from .recipes import RECIPES, Recipe, grow, start_draft
from .rounding import rounded_layers
from .teacher import Teacher, model

FURTHER = "-further"
"""Ends the name of the run that trains a shipped draft further."""
WATCHED = 160
"""Texts of the validation split that are measured during training."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a draft is trained. ``rounded_from``: share of the run from which on its layers are in four bits, as a CPU
    runs them.
    """

    rates: Rates
    batch_tokens: int = 2048
    rounded_from: float = 0.85


NEW = Plan(Rates(muon=0.02, adam=3e-3, warmup=0.02, flat_until=0.3, last=0.0))
GROWN = Plan(Rates(muon=0.01, adam=1.5e-3, warmup=0.02, flat_until=0.3, last=0.0))
"""For a draft that starts from a shallower one."""
COMPARED = Plan(Rates(muon=0.005, adam=5e-4, warmup=0.05, flat_until=0.3, last=0.0))
"""For the comparison of losses, which starts from a trained draft."""
FINISHED = Plan(Rates(muon=0.0015, adam=1.5e-4, warmup=0.04, flat_until=0.25, last=0.0), 4096, 0.3)
"""For a finished draft on further texts; a step of Muon takes as long as 2,048 tokens, so batches are larger."""


class Run:
    """The distillation of one draft, in shuffled epochs over the texts."""

    def __init__(
        self,
        name: str,
        recipe: Recipe,
        loss: str,
        teacher: Teacher,
        plan: Plan,
        start: Path | None = None,
    ) -> None:
        """``start``: the slim folder of a trained draft of this recipe, to train it further with the head it has."""
        if loss not in LOSSES:
            raise UserError(f"There is no loss {loss!r}. Losses: {', '.join(LOSSES)}.")
        self.name, self.recipe, self.loss, self.teacher, self.plan = name, recipe, loss, teacher, plan
        its_head = None if start is None else read_head_ids(start)
        self.head_ids = frequent_ids(teacher.train, recipe.head) if its_head is None else its_head
        texts = teacher.texts(teacher.train, self.head_ids)
        self.epochs = Epochs(lambda: texts, plan.batch_tokens)
        self.watched = teacher.texts(teacher.validation[:WATCHED], self.head_ids)
        self.draft, self.projection = start_draft(recipe, teacher.target)
        if start is not None:
            self.draft.load_state_dict(own_weights(start), strict=False)
        elif recipe.grown_from:
            grow(self.draft, _weights_of(recipe.grown_from))
        self.draft.set_attn_implementation("eager")  # on short texts a third faster than torch's fused attention
        self.head = self.draft.lm_head.weight.detach()[self.head_ids].bfloat16()

    def train(self, minutes: float, save: Callable[[], None] | None = None, tokens: int | None = None) -> None:
        """Trains for ``minutes`` or on ``tokens`` tokens; both count what this run did before it was interrupted."""
        settings = {"recipe": self.recipe, "loss": self.loss, "target": self.teacher.mark}
        self.timed = TimedRun(f"align-{self.name}", self.draft, 60 * minutes, settings, self.plan.rates, tokens)
        torch.manual_seed(2)
        self.timed.train(self._loss_to_train, self.plan.batch_tokens, self.match_rate, save or (lambda: None))

    def _loss_to_train(self, number: int) -> Tensor:
        with rounded_layers(self.draft) if self.timed.share > self.plan.rounded_from else nullcontext():
            return self.loss_of(number)

    def loss_of(self, number: int) -> Tensor:
        """The loss on batch ``number``, counted over all epochs."""
        batch = self.epochs.batch(number)
        hidden = hidden_at(self.draft, batch.ids, batch.places)
        rows = len(hidden) if self.loss in OF_THE_BATCH else ROWS
        return loss_over_head(hidden, self.head, batch.known, LOSSES[self.loss], rows)

    def match_rate(self) -> float:
        """Share of the tokens of the watched greedy answers that are the draft's first choice; 0 without any."""
        self.draft.eval()
        found = guesses(self.draft, self.watched, self.plan.batch_tokens)
        self.draft.train()
        greedy = [guess.hits for guess in found if guess.temperature == 0]
        return float(np.concatenate(greedy).mean()) if greedy else 0.0

    def save(self, folder: Path) -> None:
        save_slim(self.draft, folder, self.head_ids, self.recipe.target_layers, self.projection)


def _weights_of(name: str) -> dict[str, Tensor]:
    """The trained weights of the named draft. Raises UserError if it is not trained yet."""
    folder = DRAFTS / name
    if not (folder / "config.json").is_file():
        raise UserError(
            f"This draft starts from {name!r}: run `python -m training align draft {name} --minutes 40` first."
        )
    return own_weights(folder)


def distil(name: str, loss: str, minutes: float = 0.0, tokens: int | None = None, further: bool = False) -> str:
    """Distils the named draft into ``build/align/drafts``; returns a sentence on its match rate.

    ``further``: starts from the shipped draft of that name. Raises UserError.
    """
    if name not in RECIPES:
        raise UserError(f"There is no draft {name!r}. Drafts: {', '.join(RECIPES)}.")
    recipe, shipped = RECIPES[name], PAIR / "drafts" / name
    if further and not is_slim(shipped):
        raise UserError(f"There is no shipped draft {name!r} to train further. Train it without --further first.")
    plan = FINISHED if further else GROWN if recipe.grown_from else NEW
    run_name = name + FURTHER if further else name
    run = Run(run_name, recipe, loss, Teacher(model(), TEXTS), plan, shipped if further else None)
    run.train(minutes or 1e6, lambda: run.save(DRAFTS / name), tokens)
    return f"match rate {run.match_rate():.3f} on held-out texts"


def facts_of(name: str) -> dict[str, float]:
    """What the training logs of a draft, and of the draft that it grew from, record: steps, minutes, tokens."""
    recipe = RECIPES[name]
    facts: dict[str, float] = {}
    for log in (last_of_log(f"align-{name}"), last_of_log(f"align-{name}{FURTHER}")):
        for key, value in log.items():
            if key != "kept_back":
                facts[key] = facts.get(key, 0) + value
    for key, value in (facts_of(recipe.grown_from) if recipe.grown_from else {}).items():
        facts[key] = facts.get(key, 0) + value
    return facts


def tokens_seen(name: str) -> int:
    """Tokens that a draft was trained on, with repetitions."""
    return int(facts_of(name).get("tokens", 0))


@dataclass(frozen=True, slots=True)
class LossRow:
    """Figures of a loss on held-out texts: match rate on greedy answers, acceptance on answers sampled at
    temperature 1, and the differences of both from forward KL.
    """

    loss: str
    tokens: int
    match: Interval
    accepted: Interval
    match_over_kl: Interval
    accepted_over_kl: Interval


def compare_losses(
    recipe: Recipe,
    start: Path | None,
    teacher: Teacher,
    tokens: int,
    losses: Sequence[str] = tuple(LOSSES),
) -> Iterator[LossRow]:
    """Trains the draft in ``start`` (None: a new draft of ``recipe``) on ``tokens`` tokens with each loss.

    Forward KL comes first, because the others are compared with it.
    """
    found: dict[str, list[Guesses]] = {}
    for loss in ["kl", *(loss for loss in losses if loss != "kl")]:
        run = Run(f"loss-{loss}", recipe, loss, teacher, COMPARED, start)
        run.train(minutes=1e6, tokens=tokens)
        texts = teacher.texts(teacher.validation, run.head_ids)
        found[loss] = guesses(run.draft.eval(), texts)
        yield _row(loss, tokens, found[loss], found["kl"])


def _row(loss: str, tokens: int, mine: Sequence[Guesses], kl: Sequence[Guesses]) -> LossRow:
    def hits(rows: Sequence[Guesses]) -> list[np.ndarray]:
        return [row.hits for row in rows if row.temperature == 0]

    def accepted(rows: Sequence[Guesses]) -> list[np.ndarray]:
        return [row.accepted for row in rows if row.temperature == 1]

    return LossRow(
        loss,
        tokens,
        rates_of(hits(mine)),
        rates_of(accepted(mine)),
        difference(hits(mine), hits(kl)),
        difference(accepted(mine), accepted(kl)),
    )
