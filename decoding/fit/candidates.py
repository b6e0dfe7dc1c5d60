"""Which head for which policy: all candidates are trained, and validation latency chooses.

What belongs to one policy (its networks, its tuning) is in the module of that name in this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..analysis.tuning import Bench
from ..analysis.whatif import Replay
from ..lookahead.base import SL_CAP, SL_CAP_LEARNED
from ..lookahead.heads import Head
from ..lookahead.ngrams import Ngrams
from ..lookahead.spec import all_specs, learned_policies
from ..records.trace import Costs
from .calibration import Platt, along, figures, fit_platt, rescored
from .data import Positions
from .training import Trained, Weights

CAPS = (8, SL_CAP, SL_CAP_LEARNED)  # of SL_max


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

    head: Head
    trained: Trained
    tuned: dict[str, Any]
    latency: float  # per token on validation, in target passes
    figures: dict[str, float]
    candidates: dict[str, float] = field(default_factory=dict)  # validation latency of all candidates


@dataclass(slots=True)
class Calibrated:
    """A candidate with calibrated scores, ready for replay."""

    trained: Trained
    recorded: list[Replay]  # with this head's scores under the policy's name
    bench: Bench  # with its decision cost under the policy's name
    figures: dict[str, float]
    cap: int = SL_CAP  # the SL_max that is being tried


@dataclass(frozen=True, slots=True)
class Fitter:
    """How one policy is fitted.

    ``train(positions, n-grams, epochs, seed)`` gives its candidates with the names of their columns;
    ``calibrate(weights, platt)`` the weights with Platt's slope and bias folded into the last layer;
    ``provisional``: settings that a warm-up can run with;
    ``settings(candidate)`` what its head needs besides its cap and the lane's argument, which :func:`choose` finds.
    """

    train: Callable[[Positions, Ngrams | None, int, int], Iterable[tuple[str, Trained]]]
    calibrate: Callable[[Weights, Platt], Weights]
    provisional: dict[str, Any]
    settings: Callable[[Calibrated], dict[str, Any]] = lambda candidate: {}


def fitted_policies() -> list[str]:
    """The learned policies that have a fitter here."""
    return [name for name in learned_policies() if find_spec(f"{__package__}.{name}") is not None]


def fitter_of(policy: str) -> Fitter:
    """``FITTER`` in the module of the policy's name in this package."""
    return import_module(f"{__package__}.{policy}").FITTER


def head_of(policy: str, trained: Trained, tuned: dict[str, Any] | None = None) -> Head:
    """The head of ``policy`` that was ``trained``; ``tuned``: its settings, provisional ones by default."""
    head_from = all_specs()[policy].head_from
    assert head_from is not None, "a policy that is fitted has a head"
    return head_from(trained.weights, trained.architecture, tuned or fitter_of(policy).provisional)


def train_candidates(positions: Positions, ngrams: Ngrams | None, epochs: int, seed: int) -> list[Candidate]:
    """Train every candidate of every policy. ``ngrams``: those that the positions' levels are of."""
    return [
        Candidate(policy, column, trained, head_of(policy, trained))
        for policy in fitted_policies()
        for column, trained in fitter_of(policy).train(positions, ngrams, epochs, seed)
    ]


def choose(policy: str, candidates: Sequence[Candidate], recorded: list[Replay], costs: Costs) -> Fitted:
    """The candidate of ``policy`` with the least simulated validation latency, calibrated and tuned."""
    competing = [one for one in candidates if one.policy == policy]
    found = {one.column: _tune(policy, _calibrate(one, recorded, costs)) for one in competing}
    column, best = min(found.items(), key=lambda item: item[1].latency)
    best.candidates = {name: one.latency for name, one in found.items()}
    best.trained.architecture |= {"chosen": column, "training_loss": round(best.trained.loss, 5)}
    return best


def _tune(policy: str, one: Calibrated) -> Fitted:
    """``one`` with the SL_max and the argument of the least simulated validation latency."""
    trained, argument, fitter = one.trained, all_specs()[policy].argument, fitter_of(policy)
    assert argument is not None, "a policy that is fitted has something to choose"
    tries = []
    for cap in CAPS:
        settings = fitter.settings(replace(one, cap=cap)) | {"sl_max": cap}
        latency, text = one.bench.best_argument(policy, head_of(policy, trained, settings))
        tries.append((latency, cap, settings | {argument.meaning: float(text)}))
    latency, _, tuned = min(tries, key=lambda one: one[:2])
    return Fitted(head_of(policy, trained, tuned), trained, tuned, round(latency, 5), one.figures)


def _calibrate(one: Candidate, recorded: list[Replay], costs: Costs) -> Calibrated:
    draft, decision = recorded[0].chain.draft, costs.decision[one.column]
    step = costs.draft_step[draft] or costs.start(1, draft)  # the only one of a draft that makes all guesses at once
    scores, held = along(recorded, one.column)
    platt = fit_platt(scores, held)
    chains = [rescored(chain, one.policy, one.column, platt.apply) for chain in recorded]
    measured = figures(platt.apply(scores), held) | {
        "log_loss_before_platt": figures(scores, held)["log_loss"],
        "platt_slope": round(platt.slope, 4),
        "platt_bias": round(platt.bias, 4),
        "decision_over_c": round(decision / step, 4),
    }
    trained = replace(one.trained, weights=fitter_of(one.policy).calibrate(one.trained.weights, platt))
    return Calibrated(trained, chains, Bench(chains, replace(costs, decision={one.policy: decision})), measured)
