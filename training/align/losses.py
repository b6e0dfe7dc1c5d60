"""Losses between a target and a draft with a reduced head, at positions of the target's own text.

Of the target only its most probable tokens and the mass of all others are known. The mass of ids outside the head is
not spread over the ids inside: that would overstate the draft's acceptance (FR-Spec, Zhao et al. 2025; EAGLE-3, Li et
al. 2025). All losses are weighted means over positions, in nats or (total variation) in probability.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST = 1e-6
"""Lower bound on the mass of the tokens that are not known, so that its logarithm stays finite."""
FLOOR = 1e-30
"""Lower bound on the draft's probabilities before a logarithm."""
SHARPENING = 4.0
"""Inverse of the lower temperature of ``sharp``."""
BLEND = 3.0
"""How fast ``lk_hybrid`` shifts from KL to total variation as acceptance rises."""

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


def total_variation(logits: Tensor, known: Known) -> Tensor:
    """TVD, the mean of ``variation``."""
    return known.mean(variation(logits, known))


def _target_p_of(drawn: Tensor, known: Known, head: int) -> Tensor:
    """The target's probability (n,) of the drawn indices (n,); the mass of unknown tokens counts as uniform over the
    head.
    """
    hit = (known.places == drawn[:, None]) & known.inside
    p = known.p
    return torch.where(hit.any(-1), (p[:, :-1] * hit).sum(-1), p[:, -1] / head)


def draw(weights: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One index per row (n,), drawn in proportion to weights (n, classes).

    Inverts the cumulative sum with one random number per row; torch's multinomial draws one for every class.
    """
    sums = weights.cumsum(-1)
    point = torch.rand(len(weights), 1, generator=generator, device=weights.device) * sums[:, -1:]
    return torch.searchsorted(sums, point, right=True)[:, 0].clamp_max(weights.shape[-1] - 1)


def tvd_plus_plus_sampled(logits: Tensor, known: Known) -> Tensor:
    """TVD++ as published (Goel et al. 2024, section 3.2): policy gradient on one token sampled from the draft, with the
    reward r = [p > q] standardised over the batch.
    """
    q = logits.softmax(-1)
    drawn = draw(q.detach())
    chosen = q.gather(-1, drawn[:, None])[:, 0]
    reward = (_target_p_of(drawn, known, logits.shape[-1]) > chosen.detach()).float()
    advantage = (reward - reward.mean()) / reward.std().clamp_min(1e-3)
    return -known.mean(advantage * chosen.clamp_min(FLOOR).log())


def tvd_plus_plus_exact(logits: Tensor, known: Known) -> Tensor:
    """TVD++ with the sum over the head instead of one sample: the reward's mean drops out of the gradient, which leaves
    total variation divided by the reward's standard deviation.
    """
    q = draft_q(logits, known).detach()
    rewarded = known.mean((q * (known.p > q)).sum(-1))
    return total_variation(logits, known) / (rewarded * (1 - rewarded)).clamp_min(1e-3).sqrt()


def lk_hybrid(logits: Tensor, known: Known) -> Tensor:
    """Weight w on KL and 1 - w on total variation, w = exp(-BLEND * acceptance): the LK hybrid (arXiv 2602.23881)."""
    apart = variation(logits, known)
    weight = (-BLEND * (1 - apart.detach())).exp()
    return known.mean(weight * _kl(known.p, draft_q(logits, known)) + (1 - weight) * apart)


LOSSES: dict[str, Callable[[Tensor, Known], Tensor]] = {
    "kl": forward_kl,
    "tvd": total_variation,
    "tvd++-sampled": tvd_plus_plus_sampled,
    "tvd++-exact": tvd_plus_plus_exact,
    "lk-hybrid": lk_hybrid,
    "sharp": sharp,
}

OF_THE_BATCH = ("tvd++-sampled", "tvd++-exact")
"""Losses with a statistic over the whole batch, which therefore cannot be computed in parts."""


class _LossOverHead(torch.autograd.Function):
    """The loss of hidden states (n, width) under a frozen head (ids, width). Its gradient is computed in ``forward``,
    part by part.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, known: Known, loss: Callable[[Tensor, Known], Tensor], rows: int
    ) -> Tensor:
        total, gradient = torch.zeros((), device=hidden.device), torch.empty_like(hidden)
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            with torch.enable_grad():
                logits = F.linear(hidden[part], head).float().requires_grad_()
                value = loss(logits, known[part])
                (slope,) = torch.autograd.grad(value, logits)
            gradient[part] = slope.to(hidden.dtype) @ head
            total += value.detach()
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0].to(gradient.dtype), None, None, None, None


def loss_over_head(
    hidden: Tensor, head: Tensor, known: Known, loss: Callable[[Tensor, Known], Tensor], rows: int = ROWS
) -> Tensor:
    """``loss``, summed over parts of ``rows`` positions; hidden (n, width) and the frozen head (ids, width) in bf16."""
    return _LossOverHead.apply(hidden, head, known, loss, rows)
