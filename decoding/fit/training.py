"""Training of the heads: small networks, minutes on a CPU. Returns numpy weights in the heads' layout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..errors import UserError
from .calibration import Platt

BATCH = 512
Weights = dict[str, np.ndarray]


@dataclass(slots=True)
class Trained:
    """Weights of one head by name, and the mean loss of the last epoch."""

    weights: Weights
    loss: float
    architecture: dict[str, Any]
    normalisation: dict[str, Any]


def scaled_row(row: np.ndarray, platt: Platt) -> np.ndarray:
    """A last layer, its bias last, with Platt's slope and bias folded in."""
    scaled = platt.slope * row
    scaled[-1] += platt.bias
    return scaled.astype(np.float32)


@dataclass(frozen=True, slots=True)
class TwoLayers:
    """A network with one hidden layer whose inputs are normalised by ``mean`` and ``std``; the last epoch's loss."""

    net: nn.Sequential
    mean: np.ndarray
    std: np.ndarray
    loss: float

    def logits(self, inputs: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return self.net(torch.from_numpy((inputs - self.mean) / self.std))[:, 0].numpy()

    def folded(self) -> tuple[np.ndarray, np.ndarray]:
        """The layers [width, inputs + 1] and [width + 1], biases last, with the normalisation in the first."""
        first, last = (_with_bias(layer) for layer in (self.net[0], self.net[2]))
        first[:, :-1] /= self.std
        first[:, -1] -= first[:, :-1] @ self.mean
        return first, last[0]

    def normalisation(self, folded: str) -> dict[str, Any]:
        return {"mean": self.mean.tolist(), "std": self.std.tolist(), "folded": folded}


def train_two_layers(
    inputs: np.ndarray,
    labels: np.ndarray,
    width: int,
    activation: nn.Module,
    epochs: int,
    seed: int,
    policy: str,
) -> TwoLayers:
    """Trains on ``inputs`` [n, features] and ``labels`` [n]."""
    mean, std = inputs.mean(0), inputs.std(0) + 1e-4
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(inputs.shape[1], width), activation, nn.Linear(width, 1))
    return TwoLayers(net, mean, std, train_net(net, (inputs - mean) / std, labels, None, epochs, 3e-3, policy))


def _with_bias(layer: nn.Module) -> np.ndarray:
    """The weights [out, in + 1] of a linear layer, its bias last."""
    assert isinstance(layer, nn.Linear)
    return torch.cat([layer.weight, layer.bias[:, None]], dim=1).detach().numpy().copy()


def train_net(
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
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.02, 1.0 - step / steps))
    mean = 0.0
    for _ in range(epochs):
        losses = []
        for rows in torch.randperm(len(x)).split(BATCH):
            loss = binary_cross_entropy_with_logits(net(x[rows])[:, 0], y[rows], None if w is None else w[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        mean = float(np.mean(losses))
        if not math.isfinite(mean):
            raise UserError(
                f"Training the policy {policy} diverged (its loss is {mean}); nothing was written. "
                "Fit again with more prompts or another seed."
            )
    return mean
