"""How costaware is fitted: a network on margin and repetition, as a table, and a ledger that gives its threshold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.isotonic import isotonic_regression
from torch import nn

from ..lookahead.base import SL_CAP
from ..lookahead.costaware import (
    HIGHEST,
    LOWEST,
    N_POINTS,
    POINTS_PER_UNIT,
    CostAware,
    CostAwareHead,
    long_run_latency,
    threshold,
)
from ..lookahead.ledger import Row, rows_to_json
from ..lookahead.repetition import LONGEST, N_EVIDENCE
from .calibration import Platt, fit_next
from .candidates import Calibrated, Fitted, Fitter, fitted
from .data import Positions
from .training import Trained, Weights, loss_of, train_net
from .tuning import LONG_CAPS, first_guesses, following

WIDTH = 24
FLAT_FROM = (8, 16, LONGEST + 1)  # the chance after repetitions of that length needs no p
THRESHOLDS = (0.02, 0.05, 0.1, 0.2, 0.3, *np.round(np.arange(0.4, 0.81, 0.05), 3), 0.9, 1.0)


def _train(train: Positions, held: Positions, epochs: int, seed: int) -> Iterator[tuple[str, Trained]]:
    trained = train_costaware(train, held, WIDTH, epochs, seed)
    for run in FLAT_FROM:
        yield f"costaware flat from {run}" if run <= LONGEST else "costaware", flatten(trained, run)


def train_costaware(train: Positions, held: Positions, width: int, epochs: int, seed: int) -> Trained:
    """A small network on (margin, evidence of repetition); its logits are tabulated."""
    inputs, held_inputs = (costaware_inputs(one.evidence, clipped(one.margin)) for one in (train, held))
    mean, std = inputs.mean(0), inputs.std(0) + 1e-4
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(inputs.shape[1], width), nn.SiLU(), nn.Linear(width, 1))
    train_net(net, (inputs - mean) / std, train.match, None, epochs, 3e-3, "costaware")
    loss = loss_of(net, (held_inputs - mean) / std, held.match, "costaware")
    points = LOWEST + np.arange(N_POINTS) / POINTS_PER_UNIT
    grid = costaware_inputs(np.repeat(np.arange(N_EVIDENCE), N_POINTS), np.tile(points, N_EVIDENCE))
    with torch.inference_mode():
        table = net(torch.from_numpy((grid - mean) / std))[:, 0].numpy().reshape(N_EVIDENCE, N_POINTS)
    normalisation = {"mean": mean.tolist(), "std": std.tolist(), "folded": "into the table"}
    weights = {"table": table.astype(np.float32), "alone": _logits_by_run(train)}
    return Trained(weights, loss, {"width": width, "epochs": epochs}, normalisation)


def _logits_by_run(train: Positions) -> np.ndarray:
    """Logit of the chance that a token holds which continues a repetition of r tokens, r = 0 .. LONGEST [float32].

    Isotonic regression over r, with Laplace smoothing so that no chance is 0 or 1.
    """
    agreeing = train.evidence <= LONGEST
    held = np.bincount(train.evidence[agreeing], train.match[agreeing], LONGEST + 1)
    seen = np.bincount(train.evidence[agreeing], minlength=LONGEST + 1)
    chance = isotonic_regression((held + 1.0) / (seen + 2.0), sample_weight=seen + 2.0)
    return np.log(chance / (1.0 - chance)).astype(np.float32)


def flatten(trained: Trained, run: int) -> Trained:
    """Costaware's head without the margin in repetitions of ``run`` tokens or more."""
    table = trained.weights["table"].copy()
    for longer in range(run, LONGEST + 1):
        table[longer] = trained.weights["alone"][longer]
    return replace(trained, weights={"table": table}, architecture=trained.architecture | {"flat_from_run": run})


def costaware_inputs(evidence: np.ndarray, margin: np.ndarray) -> np.ndarray:
    """[n, 5]: margin; length of the repetition; +1 if the guess continues it, -1 if it leaves it, 0 without one;
    products.
    """
    disagrees = evidence > LONGEST
    run = np.where(disagrees, evidence - LONGEST, evidence)
    length = np.log1p(run)
    agrees = np.where(run == 0, 0.0, np.where(disagrees, -1.0, 1.0))
    return np.column_stack([margin, length, agrees, agrees * length, agrees * margin]).astype(np.float32)


def clipped(margin: np.ndarray) -> np.ndarray:
    """The margin, clipped to the table's range."""
    return np.clip(margin.astype(np.float64), LOWEST, HIGHEST)


def _make_head(trained: Trained, tuned: dict[str, Any] | None = None) -> CostAwareHead:
    provisional = {"first": dict.fromkeys(("start", "held", "missed"), 0.9), "next": [0.0, 1.0], "sl_max": SL_CAP}
    ledger = rows_to_json([Row(0.5, 2, (0, 1))])
    return CostAwareHead(trained.weights["table"], tuned or provisional | {"ledger": ledger})


def _calibrate(weights: Weights, platt: Platt) -> Weights:
    return weights | {"table": (platt.slope * weights["table"] + platt.bias).astype(np.float32)}


def _tune(one: Calibrated) -> Fitted:
    """Calibration of the next token's b, and the ledger from which lam follows anywhere."""
    alpha, beta = fit_next(*following(one.recorded, "costaware"))
    first = first_guesses(one.recorded)
    tuned = ({"next": [alpha, beta], "first": first, "sl_max": cap} for cap in LONG_CAPS)
    return min((_tune_ledger(one, values) for values in tuned), key=lambda found: found.latency)


def _tune_ledger(one: Calibrated, tuned: dict[str, Any]) -> Fitted:
    head = _make_head(one.trained, tuned)
    rows = [one.bench.row(CostAware(head, t), t) for t in THRESHOLDS]
    tuned["ledger"] = rows_to_json(rows)
    draft = one.recorded[0].chain.draft
    latency = one.bench.latency(one.bench.row(CostAware(_make_head(one.trained, tuned)), 0.0), "costaware")
    measured = {
        "long_run_latency": round(long_run_latency(rows, one.costs, draft), 5),
        "least_latency_of_the_ledger": round(min(one.bench.latency(row, "costaware") for row in rows), 5),
        "threshold_here": round(threshold(rows, one.costs, draft), 4),
    }
    found = fitted(one, tuned, latency)
    found.figures = one.figures | measured
    return found


FITTER = Fitter(_train, _make_head, _calibrate, _tune)
