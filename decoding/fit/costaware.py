"""How costaware is fitted: a network on lead and repetition, as a table, and a ledger that gives its threshold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.isotonic import isotonic_regression
from torch import nn

from ..lookahead.base import SL_CAP
from ..lookahead.costaware import (
    N_POINTS,
    POINTS_PER_UNIT,
    CostAware,
    CostAwareHead,
    least_latency,
    thresholds,
    updated,
)
from ..lookahead.heads import LEADS, LOWEST, leads_of
from ..lookahead.ledger import Row, rows_to_json
from ..lookahead.repetition import LONGEST, N_EVIDENCE
from .calibration import Platt, fit_chance
from .candidates import Calibrated, Fitted, Fitter, fitted
from .data import Positions
from .training import Trained, Weights, loss_of, train_net
from .tuning import LONG_CAPS, Recorded, first_guesses, held

WIDTH = 24
FLAT_FROM = (8, 16, LONGEST + 1)  # the chance after repetitions of that length needs no lead
THRESHOLDS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, *np.round(np.arange(0.4, 0.81, 0.05), 3), 0.9, 1.0)


def _train(train: Positions, held: Positions, epochs: int, seed: int) -> Iterator[tuple[str, Trained]]:
    for feature in LEADS:
        trained = train_costaware(train, held, feature, WIDTH, epochs, seed)
        for run in FLAT_FROM:
            name = f"costaware {feature}"
            yield f"{name} flat from {run}" if run <= LONGEST else name, flatten(trained, run)


def train_costaware(train: Positions, held: Positions, feature: str, width: int, epochs: int, seed: int) -> Trained:
    """A small network on (lead, evidence of repetition); its logits are tabulated."""
    inputs, held_inputs = (
        costaware_inputs(one.evidence, leads_of(feature, getattr(one, feature))) for one in (train, held)
    )
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
    return Trained(weights, loss, {"feature": feature, "width": width, "epochs": epochs}, normalisation)


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
    """Costaware's head without the lead in repetitions of ``run`` tokens or more."""
    table = trained.weights["table"].copy()
    for longer in range(run, LONGEST + 1):
        table[longer] = trained.weights["alone"][longer]
    return replace(trained, weights={"table": table}, architecture=trained.architecture | {"flat_from_run": run})


def costaware_inputs(evidence: np.ndarray, lead: np.ndarray) -> np.ndarray:
    """[n, 5]: lead; length of the repetition; +1 if the guess continues it, -1 if it leaves it, 0 without one;
    products.
    """
    disagrees = evidence > LONGEST
    run = np.where(disagrees, evidence - LONGEST, evidence)
    length = np.log1p(run)
    agrees = np.where(run == 0, 0.0, np.where(disagrees, -1.0, 1.0))
    return np.column_stack([lead, length, agrees, agrees * length, agrees * lead]).astype(np.float32)


def _make_head(trained: Trained, tuned: dict[str, Any] | None = None) -> CostAwareHead:
    provisional = {
        "first": dict.fromkeys(("start", "held", "missed"), 0.9),
        "this": [0.0, 1.0, 0.0],
        "next": [0.0, 1.0, 0.0],
        "recent": 0.5,
        "sl_max": SL_CAP,
        "ledger": rows_to_json([Row(0.5, 2, (0, 1))]),
    }
    return CostAwareHead(trained.weights["table"], tuned or provisional, trained.architecture["feature"])


def _calibrate(weights: Weights, platt: Platt) -> Weights:
    return weights | {"table": (platt.slope * weights["table"] + platt.bias).astype(np.float32)}


def _tune(one: Calibrated) -> Fitted:
    """The chances of the last and of the next token, and the ledger from which lam follows anywhere."""
    chances = fit_chances(one.recorded) | {"first": first_guesses(one.recorded)}
    return min((_tune_ledger(one, chances | {"sl_max": cap}) for cap in LONG_CAPS), key=lambda found: found.latency)


def fit_chances(recorded: Sequence[Recorded]) -> dict[str, Any]:
    """``this``: coefficients of a guess's chance; ``next``: of the chance of the guess after one that held; ``recent``:
    the match rate, with which a text starts.
    """
    rights = [held(one.chain) for one in recorded]
    scores = [np.array(one.chain.along.scores["costaware"]) for one in recorded]
    start = float(np.concatenate(rights).mean())
    recents = [recent_along(right, start) for right in rights]
    hit = [right[:-1] > 0.5 for right in rights]
    following = [(h[:-1][k], recent[1:][k], right[1:][k]) for h, recent, right, k in zip(scores, recents, rights, hit)]
    return {
        "this": list(fit_chance(*map(np.concatenate, (scores, recents, rights)))),
        "next": list(fit_chance(*map(np.concatenate, zip(*following)))),
        "recent": start,
    }


def recent_along(right: np.ndarray, start: float) -> np.ndarray:
    """The recent match rate before each guess along a text, [n]."""
    rates, rate = [], start
    for one in right:
        rates.append(rate)
        rate = updated(rate, bool(one > 0.5))
    return np.array(rates)


def _tune_ledger(one: Calibrated, tuned: dict[str, Any]) -> Fitted:
    head = _make_head(one.trained, tuned)
    rows = [one.bench.row(CostAware(head, t), t) for t in THRESHOLDS]
    tuned["ledger"] = rows_to_json(rows)
    draft = one.recorded[0].chain.draft
    latency = one.bench.latency(one.bench.row(CostAware(_make_head(one.trained, tuned)), 0.0), "costaware")
    measured = {
        "least_latency_of_the_ledger": round(least_latency(rows, one.costs, draft), 5),
        "first_threshold_here": round(thresholds(rows, one.costs, draft)[0], 4),
    }
    found = fitted(one, tuned, latency)
    found.figures = one.figures | measured
    return found


FITTER = Fitter(_train, _make_head, _calibrate, _tune)
