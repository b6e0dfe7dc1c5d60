"""The target reads texts: its hidden states, and its most probable tokens at each position."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import LlamaForCausalLM

from .data import Batch, Texts, rows_of
from .drafts import in_halves
from .texts import TOP, Text

LOGIT_ROWS = 1024
"""Positions whose logits over the vocabulary are computed at a time."""
READ_AT_ONCE = 16
"""Texts that are read in one pass on a CPU."""
LEAST = 1e-7
"""Lower bound on stored probabilities, so that their logarithms stay finite in half precision."""


@torch.no_grad()
def read(target: LlamaForCausalLM, ids: Tensor, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Of rows of ids (texts, length): the states (texts, length, width) that the head reads, and the hidden states
    after each of ``layers``, counted from 1, (texts, length, layers, width), bfloat16.

    transformers' ``output_hidden_states`` would give the last layer's after the norm.
    """
    kept: dict[int, Tensor] = {}

    def keep(layer: int) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda module, inputs, states: kept.update({layer: states})

    hooks = [target.model.layers[layer - 1].register_forward_hook(keep(layer)) for layer in layers]
    try:
        with in_halves(ids.device):
            last = target.model(input_ids=ids, use_cache=False).last_hidden_state
    finally:
        for hook in hooks:
            hook.remove()
    return last, torch.stack([kept[layer] for layer in layers], 2).bfloat16()


def of_the_token_before(states: Tensor) -> Tensor:
    """``states`` (texts, length, ...), moved on by one position; zeros at the first."""
    return torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)


@torch.no_grad()
def most_probable(target: LlamaForCausalLM, last: Tensor) -> tuple[Tensor, Tensor]:
    """The TOP most probable ids (n, TOP) after states (n, width) that the head reads, and their log-probabilities,
    float32.
    """
    head = target.lm_head.weight.float()
    found = [linear(part.float(), head).log_softmax(-1).topk(TOP) for part in last.split(LOGIT_ROWS)]
    ids = torch.cat([best.indices for best in found])
    return ids, torch.cat([best.values for best in found]).clamp_min(math.log(LEAST))


class FreshTexts(Texts):
    """Texts of which only the ids are kept: the target reads each batch anew. Batches are on its device."""

    def __init__(
        self, texts: Sequence[Text], before: Sequence[int], target: LlamaForCausalLM, layers: Sequence[int]
    ) -> None:
        super().__init__(texts, before)
        self.target, self.layers = target, layers

    def batch(self, indices: Sequence[int]) -> Batch:
        """The texts at ``indices``, with the target's states."""
        rows = rows_of([self.texts[index] for index in indices], self.before)
        ids, places, weight = (part.to(self.target.device) for part in rows)
        last, states = read(self.target, ids, self.layers)
        top_ids, top_logp = most_probable(self.target, last.flatten(0, 1)[places])
        return Batch(ids, places, weight, top_ids, top_logp, of_the_token_before(states))


def with_states(texts: FreshTexts) -> list[Text]:
    """The texts as they are kept: with the target's probabilities and its states."""
    found: list[Text] = []
    for start in range(0, len(texts.texts), READ_AT_ONCE):
        part = texts.texts[start : start + READ_AT_ONCE]
        batch = texts.batch(range(start, start + len(part)))
        assert batch.states is not None, "read anew"
        states = batch.states.flatten(0, 1)[batch.places + 1].view(torch.uint16)  # those of the token before
        columns = batch.top_ids.numpy().astype(np.uint16), batch.top_logp.half().numpy(), states.numpy()
        ends = np.cumsum([len(text.ids) for text in part])[:-1]
        for text, *known in zip(part, *(np.split(column, ends) for column in columns)):
            found.append(replace(text, **dict(zip(("top_ids", "top_logp", "states"), known))))
    return found
