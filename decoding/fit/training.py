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
    """Weights of one head by name, and the loss on held-out texts."""

    weights: Weights
    loss: float
    architecture: dict[str, Any]
    normalisation: dict[str, Any]


def scaled_row(row: np.ndarray, platt: Platt) -> np.ndarray:
    """A last layer, its bias last, with Platt's slope and bias folded in."""
    scaled = platt.slope * row
    scaled[-1] += platt.bias
    return scaled.astype(np.float32)


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


def loss_of(net: nn.Module, inputs: np.ndarray, labels: np.ndarray, policy: str) -> float:
    """Mean cross-entropy. Raises UserError where it is NaN."""
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
