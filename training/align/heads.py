"""Parallel heads on the target's last hidden state (Medusa-1: Cai et al. 2024, section 2.1), for training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import LlamaForCausalLM

from decoding.engines.instructions import multiplies_bfloat16
from decoding.engines.projections import HEADS_BIAS, HEADS_WEIGHT


class HeadsDraft(nn.Module):
    """``n`` heads: guess k of an iteration is read by the target's own head from x + SiLU(W_k x + b_k), where x is the
    target's last hidden state of the token before that iteration.

    They start at zero, with the target's own next token as each guess. ``trunk`` has no layers: it is the folder's.
    """

    def __init__(self, trunk: LlamaForCausalLM, n: int) -> None:
        super().__init__()
        width = trunk.config.hidden_size
        self.trunk = trunk.requires_grad_(False)
        self.heads = nn.ModuleList(nn.Linear(width, width) for _ in range(n))
        for parameter in self.heads.parameters():
            nn.init.zeros_(parameter)

    def unroll(self, ids: Tensor, states: Tensor, steps: int) -> Iterator[Tensor]:
        """As FeatureDraft.unroll: for each of ``steps`` guesses the states (texts, length, width) that it is read from.

        Those of guess s at position i belong to an iteration that began at i - s. ``states`` (texts, length, 1, width):
        the target's, of the token before; ``ids`` are not read.
        """
        x = states[..., 0, :].float()
        with torch.autocast(x.device.type, torch.bfloat16, enabled=multiplies_bfloat16()):
            for step, head in enumerate(list(self.heads)[:steps]):
                yield (x + silu(head(x))).roll(step, dims=1)

    def stored(self) -> dict[str, Tensor]:
        """The weights that a draft's folder holds beside its trunk (decoding/engines/projections.py)."""
        parts = [(head.weight, head.bias) for head in self.heads if isinstance(head, nn.Linear)]
        weights, biases = zip(*parts)
        return {HEADS_WEIGHT: torch.stack(weights), HEADS_BIAS: torch.stack(biases)}

    @torch.no_grad()
    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Takes such weights."""
        for head, weight, bias in zip(self.heads, weights[HEADS_WEIGHT], weights[HEADS_BIAS]):
            assert isinstance(head, nn.Linear)
            head.weight.copy_(weight)
            head.bias.copy_(bias)
