"""Compares losses: one draft, trained with each from the same start on the same tokens, measured on held-out texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decoding.errors import UserError

from .distil import COMPARED, Run
from .losses import LOSSES
from .measure import Guesses, guesses
from .recipes import Recipe
from .teacher import Teacher

DRAWS = 2000
"""Resamples of the bootstrap over texts."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A rate and its 95% interval over texts."""

    rate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.rate:.3f} [{self.low:.3f}, {self.high:.3f}]"


def rates_of(rows: Sequence[np.ndarray]) -> Interval:
    """The mean over all positions of ``rows`` (one per text); the interval is a bootstrap over texts (Efron 1979)."""
    if not sum(map(len, rows)):
        raise UserError(
            "There are too few held-out texts to measure on. Run `python -m training align texts` with more `--tokens`."
        )
    drawn = _drawn(rows)
    return Interval(float(np.concatenate(rows).mean()), *(float(x) for x in np.quantile(drawn, (0.025, 0.975))))


def difference(rows: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> Interval:
    """The mean of ``rows`` minus that of ``others`` on the same texts, with an interval by a paired bootstrap."""
    drawn = _drawn(rows) - _drawn(others)
    middle = float(np.concatenate(rows).mean() - np.concatenate(others).mean())
    return Interval(middle, *(float(x) for x in np.quantile(drawn, (0.025, 0.975))))


def _drawn(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Means (DRAWS,) over texts drawn with replacement; the draws are the same for all lists of equal length."""
    sums, counts = np.array([row.sum() for row in rows], float), np.array([len(row) for row in rows], float)
    chosen = np.random.default_rng(0).integers(len(rows), size=(DRAWS, len(rows)))
    return sums[chosen].sum(1) / counts[chosen].sum(1)


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
