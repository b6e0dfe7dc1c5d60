"""Chooses each policy's head: trains all candidates and takes the one with the least validation latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..lookahead.base import SL_CAP
from ..lookahead.costaware import CostAware, CostAwareHead, long_run_latency
from ..lookahead.costaware import threshold as costaware_threshold
from ..lookahead.disco import Disco, DiscoHead
from ..lookahead.heads import Head
from ..lookahead.ledger import Row, rows_to_json
from ..lookahead.repetition import LONGEST
from ..lookahead.specdecpp import SpecDecHead, SpecDecPlusPlus
from ..records.trace import Costs
from . import tuning
from .calibration import Platt, figures, fit_next, fit_platt
from .data import Positions, rows_of, split_texts
from .training import REJECTED_WEIGHT, Trained, flatten, train_costaware, train_disco, train_specdecpp
from .tuning import Bench, Recorded

HELD_OUT = 0.1  # share of the training texts held out to measure the loss
DISCO = [(32, "hard", False), (32, "soft", False), (32, "hard", True), (32, "soft", True)]  # width, labels, logarithms
SPECDEC = [  # context, depth D, sees the margin
    ("mixed", 3, False),
    ("clean", 0, False),
    ("clean", 1, False),
    ("mixed", 1, True),
    ("clean", 0, True),
    ("clean", 1, True),
    ("clean", 3, True),
]
SPECDEC_EPOCHS = 5  # more epochs overfit the training texts
COSTAWARE_WIDTH = 24
FLAT_FROM = (8, 16, LONGEST + 1)  # from this length on, a repetition predicts the chance without p
SURE_STEPS = np.arange(0.5, 1.0, 0.01)  # candidates for the p from which DISCO drafts on without its classifier
CHANGED = 1e-3  # largest share of decisions that this may change


@dataclass(slots=True)
class Candidate:
    """A trained head that competes for its policy; ``column`` names its scores and its decision cost."""

    policy: str
    column: str
    trained: Trained
    head: Head


@dataclass(slots=True)
class Fitted:
    """The chosen head of a policy, calibrated and tuned."""

    policy: str
    head: Head
    weights: dict[str, np.ndarray]
    architecture: dict[str, Any]
    normalisation: dict[str, Any]
    tuned: dict[str, Any]
    latency: float  # per token on validation, in target passes
    figures: dict[str, float]
    candidates: dict[str, float] = field(default_factory=dict)  # validation latency of all candidates


def train_candidates(positions: Positions, epochs: int, seed: int) -> list[Candidate]:
    """Trains every candidate of every policy."""
    trained_on, held_out = split_texts(int(positions.text.max()) + 1, HELD_OUT, seed)
    train, held = rows_of(positions, trained_on), rows_of(positions, held_out)
    found = []
    for width, labels, logs in DISCO:
        trained = train_disco(train, held, width, labels, epochs, seed, logs)
        column = f"disco {width} {labels}" + (" of logarithms" if logs else "")
        found.append(Candidate("disco", column, trained, make_head("disco", trained)))
    for context, depth, lead in SPECDEC:
        rounds = min(epochs, SPECDEC_EPOCHS)
        trained = train_specdecpp(train, held, context, depth, lead, REJECTED_WEIGHT, rounds, seed)
        column = f"specdecpp {context} D={depth}" + (" with margin" if lead else "")
        found.append(Candidate("specdecpp", column, trained, make_head("specdecpp", trained)))
    trained = train_costaware(train, held, COSTAWARE_WIDTH, epochs, seed)
    for run in FLAT_FROM:
        flat = flatten(trained, run)
        column = f"costaware flat from {run}" if run <= LONGEST else "costaware"
        found.append(Candidate("costaware", column, flat, make_head("costaware", flat)))
    return found


def make_head(policy: str, trained: Trained, tuned: dict[str, Any] | None = None) -> Head:
    """A head with these weights. ``tuned`` defaults to values that a warm-up can run with."""
    w = trained.weights
    if policy == "disco":
        logs = trained.architecture.get("inputs") == "logarithms"
        return DiscoHead(w["first"], w["second"], tuned or {"threshold": 0.5, "sl_max": SL_CAP}, logs)
    if policy == "specdecpp":
        depth = int(trained.architecture["depth"])
        tuned = tuned or {"threshold": 0.5}
        return SpecDecHead(w["block"], w["bias"], w["out"], float(w["scale"][0]), depth, tuned, w.get("lead"))
    row = Row(0.5, 2, (0, 1))
    provisional = {"first": dict.fromkeys(("start", "held", "missed"), 0.9), "next": [0.0, 1.0], "sl_max": SL_CAP}
    return CostAwareHead(w["table"], tuned or provisional | {"ledger": rows_to_json([row])})


def calibrated(policy: str, trained: Trained, platt: Platt) -> Trained:
    """The same head with Platt's slope and bias folded into its last layer."""
    weights = dict(trained.weights)
    last = {"disco": "second", "specdecpp": "out", "costaware": "table"}[policy]
    if policy == "costaware":
        weights[last] = (platt.slope * weights[last] + platt.bias).astype(np.float32)
    else:
        scaled = platt.slope * weights[last]
        scaled[-1] += platt.bias
        weights[last] = scaled.astype(np.float32)
        if "lead" in weights:
            weights["lead"] = (platt.slope * weights["lead"]).astype(np.float32)
    return replace(trained, weights=weights)


@dataclass(slots=True)
class _Calibrated:
    """A candidate with calibrated scores, ready for replay."""

    candidate: Candidate
    trained: Trained
    platt: Platt
    recorded: list[Recorded]  # with this head's scores under the policy's name
    bench: Bench
    costs: Costs  # its decision cost under the policy's name
    figures: dict[str, float]


def _calibrate(
    candidates: Sequence[Candidate], policy: str, recorded: list[Recorded], costs: Costs
) -> list[_Calibrated]:
    found = []
    for one in candidates:
        if one.policy != policy:
            continue
        scores, held = tuning.along(recorded, one.column)
        platt = fit_platt(scores, held)
        rescored = [chain.with_score(policy, one.column, platt.apply) for chain in recorded]
        priced = replace(costs, decision={policy: costs.decision[one.column]})
        measured = figures(platt.apply(scores), held) | {
            "log_loss_before_platt": figures(scores, held)["log_loss"],
            "platt_slope": round(platt.slope, 4),
            "platt_bias": round(platt.bias, 4),
            "decision_over_c": round(costs.decision[one.column] / costs.c[recorded[0].chain.draft], 4),
        }
        trained = calibrated(policy, one.trained, platt)
        found.append(_Calibrated(one, trained, platt, rescored, Bench(rescored, priced), priced, measured))
    return found


def choose_disco(candidates: Sequence[Candidate], recorded: list[Recorded], costs: Costs) -> Fitted:
    """The labels, threshold and SL_max of the least simulated validation latency."""
    fitted = [_tune_disco(one) for one in _calibrate(candidates, "disco", recorded, costs)]
    return _best(fitted)


def _tune_disco(one: _Calibrated) -> tuple[str, Fitted]:
    def latency(threshold: float, longest: int) -> float:
        policy = Disco(one.candidate.head, threshold, longest)
        return one.bench.latency(one.bench.row(policy, threshold), "disco")

    by_threshold = sorted((latency(t, SL_CAP), t) for t in tuning.DISCO_THRESHOLDS)
    best = min((latency(t, cap), t, cap) for _, t in by_threshold[:3] for cap in tuning.CAPS)
    tuned = {"threshold": float(best[1]), "sl_max": int(best[2]), "sure": sure_probability(one.recorded, best[1])}
    return one.candidate.column, _fitted(one, tuned, best[0])


def sure_probability(recorded: Sequence[Recorded], threshold: float) -> float:
    """The least p above which the classifier stops at no more than CHANGED of all guesses; 2.0 if there is none."""
    p, scores = (np.concatenate(column) for column in zip(*(tuning.everywhere(one.chain, "disco") for one in recorded)))
    stops = p[scores < threshold]
    return next((round(float(least), 2) for least in SURE_STEPS if (stops >= least).sum() <= CHANGED * len(p)), 2.0)


def choose_specdecpp(candidates: Sequence[Candidate], recorded: list[Recorded], costs: Costs) -> Fitted:
    """The depth, weight and threshold of the least simulated validation latency, and the ledger for ``auto``."""
    fitted = [_tune_specdecpp(one) for one in _calibrate(candidates, "specdecpp", recorded, costs)]
    return _best(fitted)


def _tune_specdecpp(one: _Calibrated) -> tuple[str, Fitted]:
    return one.candidate.column, min(
        (_tune_specdecpp_cap(one, cap) for cap in tuning.LONG_CAPS), key=lambda fitted: fitted.latency
    )


def _tune_specdecpp_cap(one: _Calibrated, longest: int) -> Fitted:
    head = make_head("specdecpp", one.candidate.trained, {"threshold": 0.5, "sl_max": longest})
    rows = [one.bench.row(SpecDecPlusPlus(head, t), t) for t in tuning.SPECDEC_THRESHOLDS]
    latency, threshold = min((one.bench.latency(row, "specdecpp"), row.threshold) for row in rows)
    return _fitted(one, {"threshold": threshold, "sl_max": longest, "ledger": rows_to_json(rows)}, latency)


def choose_costaware(candidates: Sequence[Candidate], recorded: list[Recorded], costs: Costs) -> Fitted:
    """The calibration of a and of the next token's b, and the ledger from which lam follows on any machine."""
    fitted = [_tune_costaware(one) for one in _calibrate(candidates, "costaware", recorded, costs)]
    return _best(fitted)


def _tune_costaware(one: _Calibrated) -> tuple[str, Fitted]:
    alpha, beta = fit_next(*tuning.following(one.recorded, "costaware"))
    first = tuning.first_guesses(one.recorded)
    return one.candidate.column, min(
        (_tune_ledger(one, {"next": [alpha, beta], "first": first, "sl_max": cap}) for cap in tuning.LONG_CAPS),
        key=lambda fitted: fitted.latency,
    )


def _tune_ledger(one: _Calibrated, tuned: dict[str, Any]) -> Fitted:
    head = make_head("costaware", one.trained, tuned)
    rows = [one.bench.row(CostAware(head, t), t) for t in tuning.COSTAWARE_THRESHOLDS]
    tuned["ledger"] = rows_to_json(rows)
    draft = one.recorded[0].chain.draft
    latency = one.bench.latency(one.bench.row(CostAware(make_head("costaware", one.trained, tuned)), 0.0), "costaware")
    measured = {
        "long_run_latency": round(long_run_latency(rows, one.costs, draft), 5),
        "least_latency_of_the_ledger": round(min(one.bench.latency(row, "costaware") for row in rows), 5),
        "threshold_here": round(costaware_threshold(rows, one.costs, draft), 4),
    }
    fitted = _fitted(one, tuned, latency)
    fitted.figures = one.figures | measured
    return fitted


def _fitted(one: _Calibrated, tuned: dict[str, Any], latency: float) -> Fitted:
    trained, policy = one.trained, one.candidate.policy
    return Fitted(
        policy=policy,
        head=make_head(policy, trained, tuned),
        weights=trained.weights,
        architecture=trained.architecture | {"held_out_loss": round(trained.loss, 5)},
        normalisation=trained.normalisation,
        tuned=tuned,
        latency=round(latency, 5),
        figures=one.figures,
    )


def _best(fitted: Sequence[tuple[str, Fitted]]) -> Fitted:
    column, best = min(fitted, key=lambda item: item[1].latency)
    best.candidates = {name: one.latency for name, one in fitted}
    best.architecture["chosen"] = column
    return best
