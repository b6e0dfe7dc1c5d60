"""The loss between a target and a draft with a reduced head, at positions of the target's own text.

Of the target only its most probable tokens and the mass of all others are known. The mass of ids outside the head is
not spread over the ids inside: that would overstate the draft's acceptance (FR-Spec, Zhao et al. 2025; EAGLE-3, Li et
al. 2025). Losses are weighted means over positions, in nats.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST = 1e-6
"""Lower bound on the mass of the tokens that are not known, so that its logarithm stays finite."""
FLOOR = 1e-30
"""Lower bound on the draft's probabilities before a logarithm."""
SHARPENING = 4.0
"""Inverse of the lower temperature of ``sharp``."""

ROWS = 256
"""Positions whose logits over a reduced head are computed at a time, so that they stay in the CPU's cache: those of a
whole batch over 8,192 ids take 130 MB, and a loss passes over them a dozen times.
"""


@dataclass(frozen=True, slots=True)
class Known:
    """The target at n positions: ``places`` (n, TOP), the head's indices of its most probable tokens, 0 for those
    outside the head; ``inside`` (n, TOP), whether they are in the head; ``logp`` (n, TOP), their log-probabilities;
    ``weight`` (n,), the weights of the positions, which sum to 1.
    """

    places: Tensor
    inside: Tensor
    logp: Tensor
    weight: Tensor

    @property
    def p(self) -> Tensor:
        """Probabilities (n, TOP + 1) of the known tokens, 0 for those outside the head, and of all others together."""
        all_p = self.logp.exp()
        rest = (1.0 - all_p.sum(-1, keepdim=True)).clamp_min(LEAST)
        return torch.cat([all_p * self.inside, rest], dim=-1)

    def __getitem__(self, part: slice | Tensor) -> Known:
        return Known(self.places[part], self.inside[part], self.logp[part], self.weight[part])

    def mean(self, values: Tensor) -> Tensor:
        return (values * self.weight).sum()


def draft_q(logits: Tensor, known: Known, sharpening: float = 1.0) -> Tensor:
    """The draft's probabilities (n, TOP + 1) of the known tokens, 0 for those outside the head, and of all others."""
    # softmax is several times as fast as logsumexp, whose gradient takes an exponential of every logit
    best = (sharpening * logits).softmax(-1).gather(-1, known.places) * known.inside
    return torch.cat([best, 1.0 - best.sum(-1, keepdim=True)], dim=-1)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) (n,) of p and q (n, classes); a class with p = 0 contributes nothing."""
    return (p * (p.clamp_min(LEAST).log() - q.clamp_min(FLOOR).log())).sum(-1)


def forward_kl(logits: Tensor, known: Known) -> Tensor:
    """KL(target || draft) over the classes that the head can propose (Hinton et al. 2015; Zhou et al. 2024)."""
    return known.mean(_kl(known.p, draft_q(logits, known)))


def sharp(logits: Tensor, known: Known) -> Tensor:
    """Forward KL at temperature 1, plus forward KL at temperature 1/4, which stresses the most probable tokens; scaled
    so that the gradients of both have equal weight.
    """
    sharpened = (SHARPENING * known.logp).softmax(-1) * known.inside
    q = draft_q(logits, known, SHARPENING)[:, :-1]
    return forward_kl(logits, known) + known.mean(_kl(sharpened, q)) / SHARPENING


def variation(logits: Tensor, known: Known) -> Tensor:
    """Total variation (n,) at each position: one minus the probability of acceptance, up to a constant that depends on
    the target's mass outside the head (Leviathan et al. 2023, theorem 3.5).
    """
    return 0.5 * (known.p - draft_q(logits, known)).abs().sum(-1)


def loss_over_head(hidden: Tensor, head: Tensor, known: Known, rows: int = ROWS) -> Tensor:
    """``sharp``, summed over parts of ``rows`` positions; hidden (n, width), frozen head (ids, width), both bf16. The
    gradient of a part is computed at once, so that its logits need not be kept.
    """
    total, gradient = torch.zeros((), device=hidden.device), torch.empty_like(hidden)
    for start in range(0, len(hidden), rows):
        part = slice(start, start + rows)
        logits = F.linear(hidden[part].detach(), head).float().requires_grad_()
        value = sharp(logits, known[part])
        (slope,) = torch.autograd.grad(value, logits)
        gradient[part] = slope.to(hidden.dtype) @ head
        total += value.detach()
    tangent = (hidden * gradient).sum()
    return total + (tangent - tangent.detach())  # the value of one, the gradient of the other
