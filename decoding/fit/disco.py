"""How DISCO is fitted: FFNs on probabilities and on their logarithms; where it may trust a token unseen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import nn

from ..lookahead.base import SL_CAP
from ..lookahead.disco import SPEC as DISCO
from ..lookahead.disco import as_logs, scaled_position
from ..lookahead.ngrams import Ngrams
from .calibration import Platt, everywhere
from .candidates import Calibrated, Fitter
from .data import Positions
from .training import Trained, Weights, scaled_row, train_two_layers

WIDTH = 32
SURE_STEPS = np.arange(0.5, 1.0, 0.01)  # of p, from which on DISCO may trust a token unseen
CHANGED = 1e-3  # of decisions, at most, by that


def _train(positions: Positions, ngrams: Ngrams | None, epochs: int, seed: int) -> Iterator[tuple[str, Trained]]:
    for inputs in ("probabilities", "logarithms"):
        yield f"disco on {inputs}", train_disco(positions, WIDTH, inputs, epochs, seed)


def train_disco(positions: Positions, width: int, read: str, epochs: int, seed: int) -> Trained:
    """FFN 12 -> width -> 1 (ReLU), cross-entropy against accepted or not. ``read``: the top-10 "probabilities" or their
    "logarithms".
    """
    at = np.array([scaled_position(int(position)) for position in positions.position])
    top10 = as_logs(positions.top10) if read == "logarithms" else positions.top10
    inputs = np.column_stack([top10, positions.entropy, at]).astype(np.float32)
    net = train_two_layers(inputs, positions.match, width, nn.ReLU(), epochs, seed, "disco")
    first, second = (layer.astype(np.float32) for layer in net.folded())
    architecture = {"layers": 2, "width": width, "inputs": read, "epochs": epochs}
    weights = {"first": first, "second": second}
    return Trained(weights, net.loss, architecture, net.normalisation("into the first layer"))


def _calibrate(weights: Weights, platt: Platt) -> Weights:
    return weights | {"second": scaled_row(weights["second"], platt)}


def _settings(one: Calibrated) -> dict[str, Any]:
    assert DISCO.argument is not None
    p, scores = (np.concatenate(column) for column in zip(*(everywhere(r.chain, "disco") for r in one.recorded)))
    return {"sure_at": [[t, sure_probability(p, scores, t)] for t in DISCO.argument.tuned]}


def sure_probability(p: np.ndarray, scores: np.ndarray, threshold: float) -> float:
    """The least p above which the classifier stops at no more than CHANGED of all guesses; 2.0 if there is none.

    ``p`` and ``scores`` are [n], of all guesses.
    """
    stops = p[scores < threshold]
    return next((round(float(least), 2) for least in SURE_STEPS if (stops >= least).sum() <= CHANGED * len(p)), 2.0)


FITTER = Fitter(_train, _calibrate, {"threshold": 0.5, "sl_max": SL_CAP}, _settings)
