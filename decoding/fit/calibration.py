"""Calibration of acceptance probabilities by Platt scaling on the validation split, quality figures, and what both and
tuning read from the validation prompts' chains.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, log_loss, roc_auc_score

from ..analysis.whatif import Replay
from ..errors import UserError
from ..records.trace import Chain, Guesses

BINS = 15


@dataclass(frozen=True, slots=True)
class Platt:
    """p' = sigmoid(slope * logit p + bias), Platt (1999); monotone for a positive slope."""

    slope: float
    bias: float

    def logits(self, logits: np.ndarray) -> np.ndarray:
        return self.slope * logits + self.bias

    def apply(self, p: np.ndarray) -> np.ndarray:
        return 1.0 / (1.0 + np.exp(-self.logits(logit(p))))


def logit(p: np.ndarray) -> np.ndarray:
    """ln(p / (1 - p)) of probabilities [n], which are first limited so that it is finite; float64."""
    clipped = np.clip(np.asarray(p, dtype=np.float64), 1e-7, 1.0 - 1e-7)
    return np.log(clipped / (1.0 - clipped))


def fit_platt(p: np.ndarray, held: np.ndarray) -> Platt:
    """Scale probabilities ``p`` to outcomes ``held`` (0 or 1). The identity if that is not possible."""
    if not 0.0 < held.mean() < 1.0:
        return Platt(1.0, 0.0)
    model = _regression(logit(p)[:, None], held)
    slope = float(model.coef_[0, 0])
    return Platt(slope, float(model.intercept_[0])) if slope > 0.05 else Platt(1.0, 0.0)


def fit_chance(p: np.ndarray, recent: np.ndarray, held: np.ndarray) -> tuple[float, float, float]:
    """(alpha, beta, gamma) of logit = alpha + beta logit p + gamma recent, the chance of ``held``; all are [n]."""
    if not 0.0 < held.mean() < 1.0:
        return float(logit(held.mean())), 0.0, 0.0
    model = _regression(np.column_stack([logit(p), recent]), held)
    return float(model.intercept_[0]), float(model.coef_[0, 0]), float(model.coef_[0, 1])


def _regression(x: np.ndarray, y: np.ndarray) -> LogisticRegression:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            return LogisticRegression(C=1e4, max_iter=1000).fit(x, y)
        except ConvergenceWarning as error:
            raise UserError("Calibration did not converge: fit again with more prompts.") from error


def figures(p: np.ndarray, held: np.ndarray) -> dict[str, float]:
    """How well ``p`` predicts ``held``: AUC, F1 at 1/2 and that of always accepting, log loss, calibration error."""
    base = float(held.mean())
    measured = {
        "positions": int(len(held)),
        "match_rate": base,
        "log_loss": float(log_loss(held, np.clip(p, 1e-7, 1 - 1e-7), labels=[0, 1])),
        "calibration_error": calibration_error(p, held),
        "f1": float(f1_score(held, p >= 0.5, zero_division=0.0)),
        "f1_always_accept": float(f1_score(held, np.ones(len(held)), zero_division=0.0)),
    }
    if 0.0 < base < 1.0:
        measured["auc"] = float(roc_auc_score(held, p))
    return {name: round(value, 5) for name, value in measured.items()}


def calibration_error(p: np.ndarray, held: np.ndarray) -> float:
    """Expected calibration error: mean |predicted - observed| over BINS bins of equal width, weighted by their
    share.
    """
    bins = np.minimum((p * BINS).astype(int), BINS - 1)
    return float(np.abs(np.bincount(bins, p - held)).sum() / len(p))


def rescored(recorded: Replay, policy: str, column: str, change: Callable[[np.ndarray], np.ndarray]) -> Replay:
    """The chain with only one column of scores, transformed and named after its ``policy``."""
    chain = recorded.chain

    def only(guesses: Guesses) -> Guesses:
        return replace(guesses, scores={policy: change(np.array(guesses.scores[column])).tolist()})

    tails = {at: only(tail) for at, tail in chain.tails.items()}
    starts = [only(guesses) for guesses in chain.starts]
    return replace(recorded, chain=replace(chain, along=only(chain.along), tails=tails, starts=starts))


def judged(chain: Chain) -> list[tuple[Guesses, int]]:
    """One guess for each place, as (its list, its index there): those along the text or, where a guess depends on where
    its iteration began, those of iterations that end with their first mistake.
    """
    n, found = len(chain.target), list[tuple[Guesses, int]]()
    if not chain.starts:
        return [(chain.along, place) for place in range(n)]
    while (start := len(found)) < n:
        guesses = chain.starts[start]
        until = min(chain.holds(start) + 1, n - start, len(guesses.choice))
        found += [(guesses, index) for index in range(until)] or [(chain.along, start)]  # nothing to propose
    return found


def judged_scores(chain: Chain, column: str) -> np.ndarray:
    """The score of the judged guess of each place."""
    return np.array([guesses.scores[column][index] for guesses, index in judged(chain)])


def held(chain: Chain) -> np.ndarray:
    """1.0 if the judged guess of a place is the target's token, else 0.0."""
    return _right((guesses.choice[index] for guesses, index in judged(chain)), chain)


def _right(choices: Iterable[int | None], chain: Chain) -> np.ndarray:
    return np.array([a == b for a, b in zip(choices, chain.target, strict=True)], dtype=np.float64)


def along(recorded: Sequence[Replay], column: str) -> tuple[np.ndarray, np.ndarray]:
    """(score, held) for the judged guess of each place."""
    scores = np.concatenate([judged_scores(one.chain, column) for one in recorded])
    return scores, np.concatenate([held(one.chain) for one in recorded])


def everywhere(chain: Chain, column: str) -> tuple[np.ndarray, np.ndarray]:
    """(p, score) for all guesses that a policy can see: along the text and after each mistake."""
    p = np.concatenate([np.array(one.p) for one in chain.lists()])
    return p, np.concatenate([np.array(one.scores[column]) for one in chain.lists()])


def first_guesses(recorded: Sequence[Replay]) -> dict[str, float]:
    """Chance that an iteration's first guess holds: at the start, after full acceptance, after a rejection.

    After a rejection at t the next iteration begins at t + 1. After full acceptance it can begin anywhere; this is
    estimated by the positions that follow two right guesses.
    """
    firsts = [_right(one.chain.along.choice, one.chain) for one in recorded]
    rights = [held(one.chain) for one in recorded]
    start = np.array([first[0] for first in firsts])
    missed = np.concatenate([first[1:][right[:-1] < 0.5] for first, right in zip(firsts, rights)])
    after = np.concatenate([first[2:][right[:-2] > 0.5] for first, right in zip(firsts, rights)])
    means = {"start": start, "missed": missed, "held": after}
    # Laplace smoothing: no chance is 0 or 1.
    return {name: float((outcomes.sum() + 1.0) / (len(outcomes) + 2.0)) for name, outcomes in means.items()}
