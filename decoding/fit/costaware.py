"""How costaware is fitted: a network on its head's inputs, and a ledger that gives its threshold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression
from torch import nn

from ..analysis.whatif import Replay
from ..lookahead.base import SL_CAP
from ..lookahead.costaware import CostAware, Row, head_from, updated
from ..lookahead.costaware_heads import (
    FEATURES_OF_NETWORKS,
    N_POINTS,
    POINTS_PER_UNIT,
    repetition_inputs,
)
from ..lookahead.heads import LEADS, LOWEST, leads_of
from ..lookahead.ngrams import Ngrams
from ..lookahead.repetition import LONGEST, N_EVIDENCE
from .calibration import Platt, first_guesses, fit_chance, held, judged_scores
from .candidates import Calibrated, Fitter
from .data import Positions
from .training import Trained, Weights, scaled_row, train_two_layers

WIDTH = 24
NETWORK_WIDTH = 8  # a live lane evaluates it for each token
NETWORK_EPOCHS = 3  # times those of the other heads, which have fewer inputs
FLAT_FROM = (8, 16, LONGEST + 1)  # the chance after repetitions of that length needs no lead
THRESHOLDS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, *np.round(np.arange(0.4, 0.81, 0.05), 3), 0.9, 1.0)


def _train(positions: Positions, ngrams: Ngrams | None, epochs: int, seed: int) -> Iterator[tuple[str, Trained]]:
    heads = [(f"costaware {feature}", train_table(positions, feature, WIDTH, epochs, seed)) for feature in LEADS]
    if ngrams is not None:
        for features in FEATURES_OF_NETWORKS:
            trained = train_network(positions, ngrams, features, NETWORK_WIDTH, NETWORK_EPOCHS * epochs, seed)
            heads.append((f"costaware n-grams {' '.join(features)}", trained))
    for name, trained in heads:
        for run in FLAT_FROM:
            yield f"{name} flat from {run}" if run <= LONGEST else name, flatten(trained, run)


def train_table(positions: Positions, feature: str, width: int, epochs: int, seed: int) -> Trained:
    """A small network on (lead, evidence of repetition); its logits are tabulated."""
    inputs = _inputs(positions.evidence, [leads_of(feature, getattr(positions, feature))])
    net = train_two_layers(inputs, positions.match, width, nn.SiLU(), epochs, seed, "costaware")
    points = LOWEST + np.arange(N_POINTS) / POINTS_PER_UNIT
    grid = _inputs(np.repeat(np.arange(N_EVIDENCE), N_POINTS), [np.tile(points, N_EVIDENCE)])
    table = net.logits(grid).reshape(N_EVIDENCE, N_POINTS)
    weights = {"table": table.astype(np.float32), "alone": _logits_by_run(positions)}
    architecture = {"feature": feature, "width": width, "epochs": epochs}
    return Trained(weights, net.loss, architecture, net.normalisation("into the table"))


def train_network(
    positions: Positions, ngrams: Ngrams, features: Sequence[str], width: int, epochs: int, seed: int
) -> Trained:
    """A network on the leads of these features, the evidence of repetition and the levels of n-grams."""
    leads = [leads_of(name, getattr(positions, name)) for name in features]
    inputs = _inputs(positions.evidence, leads, positions.levels)
    net = train_two_layers(inputs, positions.match, width, nn.ReLU(), epochs, seed, "costaware")
    first, last = net.folded()
    weights = {"first": first, "last": last, "alone": _logits_by_run(positions), "ngrams": ngrams.packed}
    architecture = {"features": list(features), "width": width, "epochs": epochs}
    return Trained(weights, net.loss, architecture, net.normalisation("into the first layer"))


def _logits_by_run(positions: Positions) -> np.ndarray:
    """Logit of the chance that a token holds which continues a repetition of r tokens, r = 0 .. LONGEST [float32].

    Isotonic regression over r, with Laplace smoothing so that no chance is 0 or 1.
    """
    agreeing = positions.evidence <= LONGEST
    held = np.bincount(positions.evidence[agreeing], positions.match[agreeing], LONGEST + 1)
    seen = np.bincount(positions.evidence[agreeing], minlength=LONGEST + 1)
    chance = isotonic_regression((held + 1.0) / (seen + 2.0), weights=seen + 2.0).x
    return np.log(chance / (1.0 - chance)).astype(np.float32)


def flatten(trained: Trained, run: int) -> Trained:
    """The head without leads in repetitions of ``run`` tokens or more."""
    weights = dict(trained.weights)
    alone = weights.pop("alone")[run:]
    if "table" in weights:
        table = weights["table"].copy()
        table[run : LONGEST + 1] = alone[:, None]
        weights["table"] = table
    else:
        weights["alone"] = alone
    return replace(trained, weights=weights, architecture=trained.architecture | {"flat_from_run": run})


def _inputs(evidence: np.ndarray, leads: Sequence[np.ndarray], levels: np.ndarray | None = None) -> np.ndarray:
    """[n, leads + 4 + levels] float32, as :class:`~decoding.lookahead.costaware_heads.NetworkHead` reads them."""
    repetition = [repetition_inputs(int(code), float(lead)) for code, lead in zip(evidence, leads[0], strict=True)]
    columns = [*leads, np.array(repetition).reshape(-1, 4), *([] if levels is None else [levels])]
    return np.column_stack(columns).astype(np.float32)


def _calibrate(weights: Weights, platt: Platt) -> Weights:
    if "table" in weights:
        return weights | {"table": platt.logits(weights["table"]).astype(np.float32)}
    alone = platt.logits(weights["alone"]).astype(np.float32)
    return weights | {"last": scaled_row(weights["last"], platt), "alone": alone}


def _settings(one: Calibrated) -> dict[str, Any]:
    """The chances of the last and of the next token, and the ledger from which lam follows anywhere."""
    chances = fit_chances(one.recorded) | {"first": first_guesses(one.recorded)}
    head = head_from(one.trained.weights, one.trained.architecture, chances | {"sl_max": one.cap})
    rows = [one.bench.row(CostAware(1.0, head, threshold=t), t) for t in THRESHOLDS]
    return chances | {"ledger": rows}


def fit_chances(recorded: Sequence[Replay]) -> dict[str, Any]:
    """``this``: coefficients of a guess's chance; ``next``: of the chance of the guess after one that held; ``recent``:
    the match rate, with which a text starts.
    """
    rights = [held(one.chain) for one in recorded]
    scores = [judged_scores(one.chain, "costaware") for one in recorded]
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


PROVISIONAL = {
    "first": dict.fromkeys(("start", "held", "missed"), 0.9),
    "this": [0.0, 1.0, 0.0],
    "next": [0.0, 1.0, 0.0],
    "recent": 0.5,
    "caution": 1.0,
    "sl_max": SL_CAP,
    "ledger": [Row(0.5, 2, (0, 1))],
}
FITTER = Fitter(_train, _calibrate, PROVISIONAL, _settings)
