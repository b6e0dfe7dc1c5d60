"""Distillation losses over the target's TOP most probable tokens plus one class for all others.

All take the draft's logits (n, vocabulary), the target's top ids and their log-probabilities (n, TOP), and the text's
next tokens (n,). All return the mean over the n positions, in nats (total variation: in probability).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST = 1e-6
"""Lower bound of the probability of all others, which keeps its logarithm finite."""
SHARPENING = 4.0
"""Inverse of the lower temperature of ``sharp_kl``."""


def _with_rest(log_probabilities: Tensor) -> Tensor:
    """Appends the log-probability of all other tokens. (n, TOP) -> (n, TOP + 1)."""
    rest = 1.0 - log_probabilities.exp().sum(-1, keepdim=True)
    return torch.cat([log_probabilities, rest.clamp_min(LEAST).log()], dim=-1)


def _both(logits: Tensor, top_ids: Tensor, top_logp: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of target and draft over the TOP tokens and all others, each (n, TOP + 1)."""
    logits = logits.float()
    draft = logits.gather(-1, top_ids) - logits.logsumexp(-1, keepdim=True)
    return _with_rest(top_logp.float()), _with_rest(draft)


def forward_kl(logits: Tensor, top_ids: Tensor, top_logp: Tensor, following: Tensor) -> Tensor:
    """KL(target || draft): Hinton et al. 2015; DistillSpec (Zhou et al. 2024, section 4)."""
    target, draft = _both(logits, top_ids, top_logp)
    return (target.exp() * (target - draft)).sum(-1).mean()


def sharp_kl(logits: Tensor, top_ids: Tensor, top_logp: Tensor, following: Tensor) -> Tensor:
    """Forward KL at temperature 1 plus, with equal weight in the gradient, at temperature 1/4.

    The lower temperature trains the draft to match the target's first choice, which greedy decoding needs; temperature
    1 keeps its probabilities for sampling.
    """
    sharp_target = (SHARPENING * top_logp.float()).log_softmax(-1)
    sharpened = SHARPENING * logits.float()
    sharp_draft = sharpened.gather(-1, top_ids) - sharpened.logsumexp(-1, keepdim=True)
    sharp = (sharp_target.exp() * (sharp_target - sharp_draft)).sum(-1).mean()
    return forward_kl(logits, top_ids, top_logp, following) + sharp / SHARPENING


def total_variation(logits: Tensor, top_ids: Tensor, top_logp: Tensor, following: Tensor) -> Tensor:
    """TV = 1/2 sum |p - q|: one minus the acceptance probability (Leviathan et al. 2023, Theorem 3.5)."""
    target, draft = _both(logits, top_ids, top_logp)
    return 0.5 * (target.exp() - draft.exp()).abs().sum(-1).mean()


def cross_entropy(logits: Tensor, top_ids: Tensor, top_logp: Tensor, following: Tensor) -> Tensor:
    """Cross-entropy on the text that the target wrote (sequence-level distillation, Kim and Rush 2016)."""
    return F.cross_entropy(logits.float(), following)


LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "kl": forward_kl,
    "sharp": sharp_kl,
    "tv": total_variation,
    "ce": cross_entropy,
}
