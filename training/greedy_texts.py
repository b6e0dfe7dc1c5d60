"""Greedy text of a transformers model over many prompts at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Report = Callable[[float], None]  # called with the share done, 0 to 1


@torch.inference_mode()
def greedy_texts(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    n_tokens: int,
    eos_ids: frozenset[int] = frozenset(),
    batch_size: int = 64,
    report: Report = lambda share: None,
) -> list[list[int]]:
    """Greedy continuations of ``prompts`` (token ids), each ``n_tokens`` long or up to the end of sequence.

    ``model`` is a transformers causal LM. Prompts of similar length share a batch, padded on the left.
    """
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    texts: list[list[int]] = [[] for _ in prompts]
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        for row, text in zip(rows, _greedy_batch(model, [prompts[i] for i in rows], n_tokens), strict=True):
            texts[row] = _until_end(text, eos_ids)
        report(min(1.0, (first + batch_size) / len(order)))
    return texts


def _greedy_batch(model: PreTrainedModel, prompts: list[list[int]], n_tokens: int) -> list[list[int]]:
    from transformers import StaticCache  # a growing cache would be copied at every step

    longest = max(map(len, prompts))
    device = next(model.parameters()).device
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=device)
    mask = torch.ones(len(prompts), longest + n_tokens, dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):
        mask[row, : longest - len(prompt)] = 0
    positions = (mask[:, :longest].cumsum(1) - 1).clamp(min=0)
    places = torch.arange(longest, device=device)  # in the cache
    cache = StaticCache(config=model.config, max_cache_len=longest + n_tokens)
    chosen = []
    for step in range(n_tokens):
        out = model(
            input_ids=ids,
            attention_mask=mask[:, : longest + step],
            position_ids=positions,
            cache_position=places,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        ids = out.logits[:, -1].argmax(-1, keepdim=True)
        chosen.append(ids)
        positions = positions[:, -1:] + 1
        places = places[-1:] + 1
    return torch.cat(chosen, dim=1).tolist()


def _until_end(text: list[int], eos_ids: frozenset[int]) -> list[int]:
    ends = [i for i, token in enumerate(text) if token in eos_ids]
    return text[: ends[0] + 1] if ends else text
