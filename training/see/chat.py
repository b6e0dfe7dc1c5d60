"""The frozen chat model, and rows of questions for it.

The questions of a scene share its picture tokens: they stand in one row, and a mask hides each from the others. The
template before the picture is the same in all rows; its cache is computed once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerBase

from decoding.engines.picture_encoder import TOKENS
from training.align.teacher import ChatModel, turns_of

from .questions import Question

PICTURE_WEIGHT, FIRST_WEIGHT = 3.0, 2.0
"""Weights of a token that the picture decides (twice as much where such words begin: "a" or "nothing"), and of an
answer's first one, which leads all others; others weigh 1.
"""


@dataclass(frozen=True, slots=True)
class Rows:
    """Several scenes with their questions, as one batch."""

    ids: Tensor
    """(rows, length): question, end of turn, answer, end of turn, of each question; padded at the end."""
    segment: Tensor
    """(rows, length): which question a token belongs to; -1 where padded."""
    position: Tensor
    """(rows, length): of each token in its own conversation, counted from the end of the picture."""
    weight: Tensor
    """(rows, length): of each token as something to be predicted; 0 outside answers."""


class Chat:
    """The frozen chat model, with what is the same for all scenes."""

    def __init__(self, model: ChatModel, dtype: torch.dtype = torch.bfloat16) -> None:
        self.tokenizer: PreTrainedTokenizerBase = model.tokenizer()
        self.turns = turns_of(self.tokenizer)
        self.model: LlamaForCausalLM = model.load(dtype).requires_grad_(False)
        self.model.set_attn_implementation("eager")  # on short texts a fifth faster than torch's fused attention
        self.embeddings: Tensor = self.model.model.embed_tokens.weight
        self.width = self.embeddings.shape[1]

    @staticmethod
    def width_of(model: ChatModel) -> int:
        return json.loads((model.folder / "config.json").read_text())["hidden_size"]

    @cached_property
    def prefix(self) -> list[tuple[Tensor, Tensor]]:
        """The keys and values of the template before the picture, by layer, one row."""
        with torch.no_grad():
            cache = self.model.model(torch.tensor([self.turns.before]), use_cache=True).past_key_values
        return [(layer.keys, layer.values) for layer in cache.layers]

    def prefix_of(self, rows: int) -> DynamicCache:
        """A cache of its own with ``rows`` rows of the prefix."""
        return DynamicCache(
            [(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1)) for keys, values in self.prefix]
        )

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def answer_ids(self, question: Question) -> tuple[list[int], list[bool]]:
        """The tokens of the answer, the end of the turn among them, and which of them the picture decides."""
        inside, decided = False, []
        for char in question.marked:
            if char in "{}":
                inside = char == "{"
            else:
                decided.append(inside)
        found = self.tokenizer(question.answer, add_special_tokens=False, return_offsets_mapping=True)
        flags = [any(decided[start:end]) for start, end in found.offset_mapping]
        return [*found.input_ids, self.turns.end], [*flags, False]

    def rows(self, asked: Sequence[Sequence[Question]]) -> Rows:
        parts: list[list[tuple[int, int, int, float]]] = []
        for questions in asked:
            row: list[tuple[int, int, int, float]] = []
            for number, question in enumerate(questions):
                before = [*self.ids(question.text), *self.turns.between]
                answer, decided = self.answer_ids(question)
                begins = [flag and not last for last, flag in zip([False, *decided], decided, strict=False)]
                weights = [0.0] * len(before)
                weights += [PICTURE_WEIGHT * (1 + first) if flag else 1.0 for first, flag in zip(begins, decided)]
                weights[len(before)] = max(weights[len(before)], FIRST_WEIGHT)
                tokens = zip([*before, *answer], weights, strict=True)
                row += [(token, number, place, weight) for place, (token, weight) in enumerate(tokens)]
            parts.append(row)
        length = max(map(len, parts))
        padded = [row + [(0, -1, 0, 0.0)] * (length - len(row)) for row in parts]
        ids, segment, position, weight = (torch.tensor(column) for column in zip(*(zip(*row) for row in padded)))
        return Rows(ids, segment, position, weight)

    def hidden(self, tokens: Tensor, rows: Rows) -> Tensor:
        """The last layer's output (rows, length, width) after picture ``tokens`` (rows, TOKENS, width)."""
        count, length = rows.ids.shape
        text = F.embedding(rows.ids, self.embeddings)
        before = len(self.turns.before)
        places = torch.cat([torch.arange(TOKENS).expand(count, -1), TOKENS + rows.position], dim=1)
        output = self.model.model(
            inputs_embeds=torch.cat([tokens.to(text.dtype), text], dim=1),
            attention_mask=_mask(rows, before).to(text.dtype),
            position_ids=before + places,
            past_key_values=self.prefix_of(count),
            use_cache=True,
        )
        return output.last_hidden_state[:, TOKENS:]


def _mask(rows: Rows, before: int) -> Tensor:
    """(rows, 1, TOKENS + length, before + TOKENS + length), 0 where a token sees another, else -1e9."""
    count = len(rows.ids)
    segment = torch.cat([torch.full((count, TOKENS), -2), rows.segment], dim=1)
    causal = torch.ones(segment.shape[1], segment.shape[1], dtype=torch.bool).tril()
    seen = causal & ((segment[:, None] == segment[:, :, None]) | (segment[:, None] == -2))
    seen = F.pad(seen, (before, 0), value=True)
    return torch.zeros(seen.shape).masked_fill(~seen, -1e9)[:, None]
