"""How well a draft guesses the target's answers, on texts that are not used for training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from decoding.analysis.bootstrap import Bootstrap, Interval
from decoding.errors import UserError

from .data import all_texts
from .texts import Text

SL = 3
"""Tokens drafted per iteration in the figure that Goel et al. (2024, table 1) call block efficiency."""


def passes_of(hits: np.ndarray) -> int:
    """Passes of the target along one text, when each iteration makes a guess for each step of ``hits`` (steps, n):
    whether the guess of that step for each token holds.
    """
    place = passes = 0
    steps, n = hits.shape
    while place < n:
        run = 0
        while run < steps and place + run < n and hits[run, place + run]:
            run += 1
        place += run + 1
        passes += 1
    return passes


def rates_of(rows: Sequence[np.ndarray]) -> dict[str, float]:
    """The mean over all positions of ``rows`` (one per text) as ``rate``, and ``low`` and ``high`` of its 95% interval
    by a bootstrap over texts (Efron 1979).
    """
    if not sum(map(len, rows)):
        raise UserError(
            "There are too few held-out texts to measure on. Run `python -m training align texts` with more `--tokens`."
        )
    hits, counts = _totals(rows)
    return _as_rate(Bootstrap(len(rows)).ratio(hits, counts))


def difference(rows: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> dict[str, float]:
    """The mean of ``rows`` minus that of ``others`` on the same texts, with an interval by a paired bootstrap."""
    (hits, counts), (theirs, their_counts) = _totals(rows), _totals(others)
    return _as_rate(
        Bootstrap(len(rows)).interval(lambda total: total(hits) / total(counts) - total(theirs) / total(their_counts))
    )


def _as_rate(found: Interval) -> dict[str, float]:
    return {"rate": found.value, "low": found.low, "high": found.high}


def _totals(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The sum and the number of positions of each text."""
    return np.array([row.sum() for row in rows], float), np.array([len(row) for row in rows], float)


def figures_of_text(hits: Sequence[np.ndarray], accepted: Sequence[np.ndarray]) -> dict[str, Any]:
    """Of a draft that reads the text alone, from its ``hits`` along greedy answers, and the probabilities that sampled
    guesses are ``accepted`` along others.
    """
    greedy = [each[0] for each in hits]
    return {
        "answers": len(greedy),
        "answer_tokens": sum(map(len, greedy)),
        "match": rates_of(greedy),
        "accepted": rates_of(accepted),
        "tokens_per_pass": sum(map(len, greedy)) / sum(map(passes_of, hits)),
    }


def outside(texts: Sequence[Text], head_ids: Tensor) -> float:
    """Share of the tokens of the answers that a reduced head cannot propose."""
    answers = np.concatenate([text.ids[text.answer :] for text in texts])
    return float(np.isin(answers, head_ids.numpy(), invert=True).mean())


def facts_of_texts(folder: Path) -> dict[str, int]:
    """Numbers of the texts that the target has written and of their tokens."""
    lengths = [len(text.ids) for text in all_texts(folder)]
    return {"texts": len(lengths), "tokens": sum(lengths)}


def figures_of_steps(hits: Sequence[np.ndarray]) -> dict[str, float]:
    """Rates of the first three guesses from any start, and tokens per target pass, of the ``hits`` of each answer."""
    by_step = [np.concatenate([each[step] for each in hits]) for step in range(SL)]
    passes = sum(map(passes_of, hits))
    return {
        "first": float(by_step[0].mean()),
        "second": float(by_step[1].mean()),
        "third": float(by_step[2].mean()),
        "second_if_reached": after_hits(hits, 1),
        "third_if_reached": after_hits(hits, 2),
        "tokens_per_pass": len(by_step[0]) / passes,
        "answers": len(hits),
        "answer_tokens": len(by_step[0]),
    }


def after_hits(hits: Sequence[np.ndarray], step: int) -> float:
    """How often the guess of ``step`` holds where those before it in the iteration hold."""
    good = total = 0
    for rows in hits:
        reached = np.ones(rows.shape[1] - step, bool)
        for s in range(step):
            reached &= rows[s, s : s + len(reached)]
        good += int((rows[step, step:] & reached).sum())
        total += int(reached.sum())
    return good / max(total, 1)
