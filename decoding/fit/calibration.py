"""Calibration of acceptance probabilities: Platt scaling on the validation split, and quality figures."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, log_loss, roc_auc_score

from ..errors import UserError

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
    total = 0.0
    for one in np.unique(bins):
        chosen = bins == one
        total += chosen.mean() * abs(p[chosen].mean() - held[chosen].mean())
    return float(total)
