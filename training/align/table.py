"""Compares losses: one draft, trained with each from the same start on the same tokens, measured on held-out texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .distil import COMPARED, Run
from .losses import LOSSES
from .measure import Guesses, Interval, difference, guesses, rates_of
from .recipes import Recipe
from .teacher import Teacher


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
