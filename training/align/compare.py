"""Compares the losses: one draft, trained further with each of them on the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from training.files import write_json
from training.loop import Rates
from training.paths import DRAFTS, PAIR, TEXTS

from .distil import Plan, Run
from .losses import LOSSES
from .measure import Guesses, difference, guesses, rates_of
from .recipes import COMPARED, RECIPES
from .teacher import Teacher, model

LOSSES_FILE = "losses.json"
PLAN = Plan(Rates(muon=0.005, adam=5e-4, warmup=0.05, flat_until=0.3))
"""For a draft that is trained already."""


def compare_losses(tokens: int, report: Callable[[str], None]) -> None:
    """Trains the draft COMPARED on ``tokens`` tokens with each loss, and writes the figures next to the pair, for its
    card. It starts as it was trained here; where it was not, as a new draft.
    """
    teacher, start = Teacher(model(), TEXTS), DRAFTS / COMPARED
    found: dict[str, list[Guesses]] = {}
    rows = []
    for loss in LOSSES:
        run = Run(f"loss-{loss}", RECIPES[COMPARED], loss, teacher, PLAN, start if start.is_dir() else None)
        run.train(inf, tokens)
        found[loss] = guesses(run.draft.eval(), teacher.texts(teacher.splits["validation"], run.head_ids))
        figures = _figures(found[loss], found["kl"])
        report(f"{loss}: match {figures['match']['rate']:.3f}, accepted {figures['accepted']['rate']:.3f}")
        rows.append({"loss": loss, "tokens": tokens} | figures)
        write_json(PAIR / LOSSES_FILE, rows)


def _figures(mine: Sequence[Guesses], kl: Sequence[Guesses]) -> dict[str, dict[str, float]]:
    """The match rate on greedy answers and the acceptance on answers sampled at temperature 1, with the differences of
    both from forward KL.
    """

    def hits(rows: Sequence[Guesses]) -> list[np.ndarray]:
        return [row.hits for row in rows if row.temperature == 0]

    def accepted(rows: Sequence[Guesses]) -> list[np.ndarray]:
        return [row.accepted for row in rows if row.temperature == 1]

    return {
        "match": rates_of(hits(mine)),
        "accepted": rates_of(accepted(mine)),
        "match_over_kl": difference(hits(mine), hits(kl)),
        "accepted_over_kl": difference(accepted(mine), accepted(kl)),
    }
