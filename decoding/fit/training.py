"""Training of the heads: small networks, minutes on a CPU. Returns numpy weights in the heads' layout."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.isotonic import isotonic_regression
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..errors import UserError
from ..lookahead.costaware import HIGHEST, LOWEST, N_POINTS, POINTS_PER_UNIT
from ..lookahead.disco import N_INPUTS, as_logs, scaled_position
from ..lookahead.repetition import LONGEST, N_EVIDENCE
from ..lookahead.specdecpp import HINGES, hinged
from .data import Positions

BATCH = 512
REJECTED_WEIGHT = 6.0  # SpecDec++'s w_rej
Labels = str  # "hard": accepted or not; "soft": 1 - TV


@dataclass(slots=True)
class Trained:
    """Weights of one head by name, and the loss on held-out texts."""

    weights: dict[str, np.ndarray]
    loss: float
    architecture: dict[str, object]
    normalisation: dict[str, object]


def train_disco(
    train: Positions, held: Positions, width: int, labels: Labels, epochs: int, seed: int, logs: bool = False
) -> Trained:
    """FFN 12 -> width -> 1 (ReLU), cross-entropy against hard or soft labels; inputs are the top-10 probabilities or
    their ``logs``.
    """
    inputs, held_inputs = _disco_inputs(train, logs), _disco_inputs(held, logs)
    mean, std = inputs.mean(0), inputs.std(0) + 1e-4
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(N_INPUTS, width), nn.ReLU(), nn.Linear(width, 1))
    wanted = train.match if labels == "hard" else train.overlap
    loss = _train(net, (inputs - mean) / std, wanted, None, epochs, 3e-3, "disco")
    loss = _loss(net, (held_inputs - mean) / std, held.match, "disco")
    first, second = net[0], net[2]
    scaled = first.weight.detach().numpy() / std  # the normalisation moves into the layer
    bias = first.bias.detach().numpy() - scaled @ mean
    weights = {
        "first": np.hstack([scaled, bias[:, None]]).astype(np.float32),
        "second": np.append(second.weight.detach().numpy()[0], second.bias.item()).astype(np.float32),
    }
    normalisation = {"mean": mean.tolist(), "std": std.tolist(), "folded": "into the first layer"}
    read = "logarithms" if logs else "probabilities"
    architecture = {"layers": 2, "width": width, "labels": labels, "inputs": read, "epochs": epochs}
    return Trained(weights, loss, architecture, normalisation)


def _disco_inputs(positions: Positions, logs: bool) -> np.ndarray:
    at = np.array([scaled_position(int(position)) for position in positions.position])
    top10 = as_logs(positions.top10) if logs else positions.top10
    return np.column_stack([top10, positions.entropy, at]).astype(np.float32)


class ResidualHead(nn.Module):
    """D x [x + SiLU(W x + b)] with shared weights, then a linear layer, as published. ``SpecDecHead`` explains
    ``lead``.

    Its inputs are [n, size], or [n, size + 3] with the margin's hinges last.
    """

    def __init__(self, size: int, depth: int, lead: bool) -> None:
        super().__init__()
        self.block, self.out, self.depth, self.size = nn.Linear(size, size), nn.Linear(size, 1), depth, size
        self.lead = nn.Linear(len(HINGES), 1, bias=False) if lead else None
        nn.init.zeros_(self.block.weight)  # the block starts as the identity, since SiLU(0) = 0

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs[:, : self.size]
        for _ in range(self.depth):
            x = x + nn.functional.silu(self.block(x))
        return self.out(x) if self.lead is None else self.out(x) + self.lead(inputs[:, self.size :])


def train_specdecpp(
    train: Positions, held: Positions, context: str, depth: int, lead: bool, weight: float, epochs: int, seed: int
) -> Trained:
    """A head on hidden states of guesses in a "mixed" (published) or "clean" context; ``weight`` is that of rejections.

    With ``lead``, the head also sees the guesses' margins.
    """
    if context == "mixed":
        train, held = train.take(np.flatnonzero(train.judged)), held.take(np.flatnonzero(held.judged))
    states = getattr(train, context).astype(np.float32)
    scale = np.float32(states.std() + 1e-6)
    inputs, held_inputs = (_specdecpp_inputs(one, context, scale, lead) for one in (train, held))
    torch.manual_seed(seed)
    net = ResidualHead(states.shape[1], depth, lead)
    weights = np.where(train.match > 0.5, 1.0, weight).astype(np.float32)
    _train(net, inputs, train.match, weights, epochs, 1e-3, "specdecpp", decay=0.3)
    loss = _loss(net, held_inputs, held.match, "specdecpp")
    out = net.out.weight.detach().numpy()[0]
    found = {
        "block": net.block.weight.detach().numpy().copy(),
        "bias": net.block.bias.detach().numpy().copy(),
        "out": np.append(out, net.out.bias.item()).astype(np.float32),
        "scale": np.array([scale], dtype=np.float32),
    }
    if net.lead is not None:
        found["lead"] = net.lead.weight.detach().numpy()[0].astype(np.float32)
    architecture = {
        "depth": depth,
        "shared": True,
        "context": context,
        "margin": lead,
        "w_rej": weight,
        "epochs": epochs,
    }
    return Trained(found, loss, architecture, {"scale": float(scale)})


def _specdecpp_inputs(positions: Positions, context: str, scale: np.float32, lead: bool) -> np.ndarray:
    states = getattr(positions, context).astype(np.float32) / scale
    return np.hstack([states, hinged(positions.margin)]) if lead else states


def train_costaware(train: Positions, held: Positions, width: int, epochs: int, seed: int) -> Trained:
    """A small network on (margin, evidence of repetition); its logits are tabulated."""
    inputs, held_inputs = (costaware_inputs(one.evidence, clipped(one.margin)) for one in (train, held))
    mean, std = inputs.mean(0), inputs.std(0) + 1e-4
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(inputs.shape[1], width), nn.SiLU(), nn.Linear(width, 1))
    _train(net, (inputs - mean) / std, train.match, None, epochs, 3e-3, "costaware")
    loss = _loss(net, (held_inputs - mean) / std, held.match, "costaware")
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


def _train(
    net: nn.Module,
    inputs: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    epochs: int,
    rate: float,
    policy: str,
    decay: float = 0.01,
) -> float:
    """AdamW with a linearly decaying rate. Returns the last epoch's mean loss. Raises UserError if it is not finite."""
    x, y = torch.from_numpy(np.ascontiguousarray(inputs)), torch.from_numpy(labels.astype(np.float32))
    w = None if weights is None else torch.from_numpy(weights)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=decay)
    steps = epochs * math.ceil(len(x) / BATCH)

    def schedule(step: int) -> float:
        return max(0.02, 1.0 - step / steps)

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    total = 0.0
    for _ in range(epochs):
        total, seen = 0.0, 0
        for rows in torch.randperm(len(x)).split(BATCH):
            loss = binary_cross_entropy_with_logits(net(x[rows])[:, 0], y[rows], None if w is None else w[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            total, seen = total + loss.item(), seen + 1
        total /= max(1, seen)
        _check_finite(total, policy)
    return total


def _loss(net: nn.Module, inputs: np.ndarray, labels: np.ndarray, policy: str) -> float:
    with torch.inference_mode():
        logits = net(torch.from_numpy(np.ascontiguousarray(inputs)))[:, 0]
        loss = binary_cross_entropy_with_logits(logits, torch.from_numpy(labels.astype(np.float32))).item()
    _check_finite(loss, policy)
    return loss


def _check_finite(loss: float, policy: str) -> None:
    if not math.isfinite(loss):
        raise UserError(
            f"Training the policy {policy} diverged (its loss is {loss}); nothing was written. "
            "Fit again with more prompts or another seed."
        )
