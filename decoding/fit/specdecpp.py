"""How SpecDec++ is fitted: heads of several depths, with and without a lead; its ledger."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from ..lookahead.heads import LEADS
from ..lookahead.ngrams import Ngrams
from ..lookahead.specdecpp import HINGES, hinged
from .calibration import Platt
from .candidates import Fitter
from .data import Positions
from .training import Trained, Weights, scaled_row, train_net

REJECTED_WEIGHT = 6.0  # w_rej
VARIANTS = [*product((0, 1, 3), (None, *LEADS))]  # depth D, feature whose lead the head sees
MOST_EPOCHS = 5  # more epochs overfit the training texts


def _train(positions: Positions, ngrams: Ngrams | None, epochs: int, seed: int) -> Iterator[tuple[str, Trained]]:
    for depth, feature in VARIANTS:
        column = f"specdecpp D={depth}" + (f" with {feature}" if feature else "")
        yield column, train_specdecpp(positions, depth, feature, min(epochs, MOST_EPOCHS), seed)


class ResidualHead(nn.Module):
    """D x [x + SiLU(W x + b)] with shared weights, then a linear layer, as published. ``SpecDecHead`` explains
    ``lead``.

    Its inputs are [n, size], or [n, size + 3] with the lead's hinges last.
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


def train_specdecpp(positions: Positions, depth: int, feature: str | None, epochs: int, seed: int) -> Trained:
    """A head on the draft's states with its guesses as inputs; with a ``feature`` it also sees the guesses' leads.

    As published, a rejected guess weighs REJECTED_WEIGHT times as much. The published head has depth 3 and no leads. It
    learns from states that follow a mixture of the draft's and the target's tokens, which no lane has.
    """
    states = positions.hidden.astype(np.float32)
    scale = np.float32(states.std() + 1e-6)
    inputs = states / scale
    if feature is not None:
        inputs = np.hstack([inputs, hinged(feature, getattr(positions, feature))])
    torch.manual_seed(seed)
    net = ResidualHead(states.shape[1], depth, feature is not None)
    weights = np.where(positions.match > 0.5, 1.0, REJECTED_WEIGHT).astype(np.float32)
    loss = train_net(net, inputs, positions.match, weights, epochs, 1e-3, "specdecpp", decay=0.3)
    out = net.out.weight.detach().numpy()[0]
    found = {
        "bias": net.block.bias.detach().numpy().copy(),
        "out": np.append(out, net.out.bias.item()).astype(np.float32),
        "scale": np.array([scale], dtype=np.float32),
    }
    if depth:
        found["block"] = net.block.weight.detach().numpy().copy()
    if net.lead is not None:
        found["lead"] = net.lead.weight.detach().numpy()[0].astype(np.float32)
    architecture = {"depth": depth, "feature": feature, "w_rej": REJECTED_WEIGHT, "epochs": epochs}
    return Trained(found, loss, architecture, {"scale": float(scale)})


def _calibrate(weights: Weights, platt: Platt) -> Weights:
    changed = weights | {"out": scaled_row(weights["out"], platt)}
    if "lead" in weights:
        changed["lead"] = (platt.slope * weights["lead"]).astype(np.float32)
    return changed


FITTER = Fitter(_train, _calibrate, {"threshold": 0.5})
