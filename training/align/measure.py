"""How well a draft guesses the target's answers, on texts that are not used for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from .data import Texts
from .losses import variation


@dataclass(frozen=True, slots=True)
class Guesses:
    """Along one answer of n tokens: its temperature; ``hits`` (n,), whether the draft's first choice is the text's
    token; ``accepted`` (n,), the probability that a token sampled from the draft is accepted at temperature 1.
    """

    temperature: float
    hits: np.ndarray
    accepted: np.ndarray


@torch.no_grad()
def guesses(draft: LlamaForCausalLM, texts: Texts, indices: Sequence[int], tokens: int = 4096) -> list[Guesses]:
    """The draft's guesses along the answers of the texts at ``indices``."""
    chosen = set(indices)
    found = []
    for batch in texts.batches(tokens, seed=0):
        rows = [index for index in batch if index in chosen]
        if rows:
            found += _guesses_of(draft, texts, rows)
    return found


def _guesses_of(draft: LlamaForCausalLM, texts: Texts, rows: list[int]) -> list[Guesses]:
    batch = texts.batch(rows)
    logits = head_logits(draft, batch.ids, batch.places, texts.head_ids)
    first = texts.head_ids[logits.argmax(-1)]
    outside = (batch.known.logp.exp() * ~batch.known.inside).sum(-1)
    # The target's mass outside the head cannot be accepted either; variation covers only what the head can propose.
    accepted = 1 - variation(logits, batch.known) - 0.5 * outside
    found, start = [], 0
    for row in rows:
        text = texts.texts[row]
        answer, end = start + text.answer, start + len(text.ids)
        ids = torch.from_numpy(text.ids[text.answer :].astype(np.int64))
        found.append(Guesses(text.temperature, (first[answer:end] == ids).numpy(), accepted[answer:end].numpy()))
        start = end
    return found


def hidden_at(draft: LlamaForCausalLM, ids: Tensor, places: Tensor) -> Tensor:
    """Last hidden states (n, width), bf16, at flat ``places`` (n,) of ids (texts, length)."""
    with torch.autocast(ids.device.type, torch.bfloat16):
        return draft.model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)[places].bfloat16()


def head_logits(draft: LlamaForCausalLM, ids: Tensor, places: Tensor, head_ids: Tensor) -> Tensor:
    """Logits (n, head), float32, at flat ``places`` (n,) of ids (texts, length)."""
    head = draft.lm_head.weight[head_ids].bfloat16()
    return torch.nn.functional.linear(hidden_at(draft, ids, places), head).float()


def tokens_per_pass(hits: np.ndarray, speculation_length: int) -> float:
    """Tokens per target pass along one text, when each iteration drafts ``speculation_length`` tokens."""
    passes = place = 0
    while place < len(hits):
        run = 0
        while run < speculation_length and place + run < len(hits) and hits[place + run]:
            run += 1
        place += run + 1
        passes += 1
    return len(hits) / max(passes, 1)


def summary(found: Sequence[Guesses]) -> dict[str, float]:
    """Match rate and tokens per target pass at SL 3 over greedy answers, and acceptance over answers sampled at
    temperature 1.
    """
    greedy = [guess.hits for guess in found if guess.temperature == 0]
    sampled = [guess.accepted for guess in found if guess.temperature == 1]
    hits = np.concatenate(greedy) if greedy else np.zeros(1)
    passes = sum(len(row) / tokens_per_pass(row, 3) for row in greedy if len(row))
    return {
        "match": float(hits.mean()),
        "tokens_per_pass": len(hits) / passes if passes else 1.0,
        "accepted": float(np.concatenate(sampled).mean()) if sampled else 0.0,
    }
