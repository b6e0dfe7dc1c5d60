"""Does a loss beat another? One draft, trained from one start on the same tokens by each, on texts kept back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decoding.errors import UserError

from .distil import Run
from .losses import LOSSES
from .measure import Guesses, guesses
from .recipes import Recipe
from .teacher import Teacher

DRAWS = 2000
"""Samples of the bootstrap over texts."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A rate and its 95% interval over texts."""

    rate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.rate:.3f} [{self.low:.3f}, {self.high:.3f}]"


def rates_of(rows: Sequence[np.ndarray]) -> Interval:
    """The mean over all positions of rows (one a text), with texts drawn anew for its interval (Efron 1979)."""
    if not sum(map(len, rows)):
        raise UserError("Too few texts are kept back to measure on. Run `python -m training align texts` for longer.")
    drawn = _drawn(rows)
    return Interval(float(np.concatenate(rows).mean()), *(float(x) for x in np.quantile(drawn, (0.025, 0.975))))


def difference(rows: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> Interval:
    """How much the mean of rows lies above that of others along the same texts; the interval draws texts in pairs."""
    drawn = _drawn(rows) - _drawn(others)
    middle = float(np.concatenate(rows).mean() - np.concatenate(others).mean())
    return Interval(middle, *(float(x) for x in np.quantile(drawn, (0.025, 0.975))))


def _drawn(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Means (DRAWS,) over texts drawn with replacement, the same draws for every list of as many texts."""
    sums, counts = np.array([row.sum() for row in rows], float), np.array([len(row) for row in rows], float)
    chosen = np.random.default_rng(0).integers(len(rows), size=(DRAWS, len(rows)))
    return sums[chosen].sum(1) / counts[chosen].sum(1)


@dataclass(frozen=True, slots=True)
class LossRow:
    """What a loss came to on texts kept back: match rate along greedy answers, acceptance along those sampled at
    temperature 1, and both less those of forward KL.
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
    """Trains the draft in ``start`` further on ``tokens`` tokens by each loss; None: from the recipe's beginning.

    Forward KL goes first: the others are compared with it.
    """
    found: dict[str, list[Guesses]] = {}
    for loss in ["kl", *(loss for loss in losses if loss != "kl")]:
        run = Run(f"loss-{loss}", recipe, loss, teacher, start=start)
        run.train(minutes=1e6, tokens=tokens)
        texts = teacher.texts(teacher.validation, run.head_ids)
        found[loss] = guesses(run.draft.eval(), texts, range(len(texts.texts)))
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
