"""The target on a GPU: it reads many texts in one pass, and writes thousands of them at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from .data import Batch, Texts
from .llama import Llama
from .losses import draw
from .stream import (
    LEAST,
    LONGEST_ANSWER,
    LONGEST_PROMPT,
    SHARES,
    TEMPERATURES,
    TOP,
    Text,
    Turns,
    drawn_from_nucleus,
    highest,
    new_prompt,
)

LOGIT_ROWS = 4096
"""Positions whose logits over the vocabulary are computed at a time."""
STRIDE = 32
"""The cache is read up to a multiple of so many positions."""


class GpuTarget(Llama):
    """The head is in float16, whose logits are eight times as fine as those of bfloat16."""

    def __init__(self, model: LlamaForCausalLM, length: int) -> None:
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew, in 50 ms, for each shape of a batch
        super().__init__(model, length, torch.bfloat16, torch.float16, rows=0)

    def top(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The TOP most probable ids (n, TOP) after states (n, width), and their log-probabilities, float32."""
        found = []
        for part in states.split(LOGIT_ROWS):
            logits = self.logits(part)
            best, ids = highest(logits, TOP)
            logp = best.float() - logits.float().logsumexp(-1, keepdim=True)
            found.append((ids, logp.clamp_min(math.log(LEAST))))
        return torch.cat([ids for ids, _ in found]), torch.cat([logp for _, logp in found])


class Reader:
    """Reads texts with the target when a batch asks for them; several drafts that are trained on the same batch share
    the pass.
    """

    def __init__(self, target: GpuTarget, layers: Sequence[int]) -> None:
        self.target, self.layers = target, layers
        self._last: tuple[Sequence[Text], tuple[Tensor, ...]] = ((), ())

    @torch.no_grad()
    def read(self, texts: Texts, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """``Texts.rows`` of the texts at ``indices``; the most probable ids and their log-probabilities at these
        positions; and the hidden states of the token before each (texts, length, layers, width).
        """
        chosen = [texts.texts[index] for index in indices]
        if [*map(id, chosen)] != [*map(id, self._last[0])]:
            ids, places, weight = (part.to(self.target.device) for part in texts.rows(chosen))
            last, before = self.target.read(ids, self.layers)
            self._last = chosen, (ids, places, weight, *self.target.top(last.flatten(0, 1)[places]), before)
        return self._last[1]


class FreshTexts(Texts):
    """Texts of which only the ids are kept: the target reads each batch anew. Batches are on its device."""

    def __init__(self, reader: Reader, texts: Sequence[Text], before: Sequence[int], head_ids: Tensor) -> None:
        super().__init__(texts, before, head_ids, len(reader.target.embedding))
        self.reader, self.place_of = reader, self.place_of.to(reader.target.device)

    def batch(self, indices: Sequence[int]) -> Batch:
        """The texts at ``indices``, with the target's states."""
        ids, places, weight, top_ids, logp, states = self.reader.read(self, indices)
        return Batch(ids, places, self.known(top_ids, logp, weight), states)


@dataclass(slots=True)
class _Rows:
    """Texts that are being written: their next ids and positions (rows,), and the cache: for each layer's keys, then
    each layer's values, (rows, kv_heads, length, head_dim).
    """

    ids: Tensor
    positions: Tensor
    cache: list[Tensor]


class Writer:
    """Writes texts in rounds: ``rows`` prompts at once, then the answers to those of them that are good.

    As ``stream.Stream`` does on a CPU, with the same lengths, temperatures and nucleus; on a GPU one pass over
    thousands of texts takes little longer than over one.
    """

    def __init__(
        self, target: GpuTarget, turns: Turns, tokenizer: PreTrainedTokenizerBase, seen: set[str], seed: int, rows: int
    ) -> None:
        self.target, self.turns, self.tokenizer, self.seen, self.rows = target, turns, tokenizer, seen, rows
        self.length = len(turns.before) + LONGEST_PROMPT + len(turns.between) + LONGEST_ANSWER
        self.generator = torch.Generator(target.device).manual_seed(seed)

    def round(self) -> list[Text]:
        """New texts of all temperatures; prompts that were seen before are refused."""
        rows, written = self._prompts()
        kept, prompts, ids = [], [], []
        for row, text in enumerate(written.tolist()):
            if self.turns.end in text:
                text = text[: text.index(self.turns.end) + 1]
                if prompt := new_prompt(text[:-1], self.tokenizer, self.seen):
                    kept.append(row)
                    prompts.append(prompt)
                    ids.append(text)
        if not kept:
            return []
        lengths = torch.tensor([len(text) for text in ids], device=self.target.device)
        shares = torch.tensor(SHARES, device=self.target.device)
        choice = torch.multinomial(shares, len(kept), replacement=True, generator=self.generator).sort().values
        answers = self._answers(rows, torch.tensor(kept, device=self.target.device), lengths, choice)
        temperatures = [TEMPERATURES[place] for place in choice.tolist()]
        parts = zip(ids, prompts, answers.tolist(), temperatures)
        texts = [_text(i + self.turns.between[1:], prompt, self._ended(a), t) for i, prompt, a, t in parts]
        return [text for text in texts if len(text.ids) > text.answer + 1]

    def _ended(self, answer: list[int]) -> list[int]:
        return answer[: answer.index(self.turns.end) + 1] if self.turns.end in answer else answer

    def _prompts(self) -> tuple[_Rows, Tensor]:
        """Rows that have read a prompt of their own, and its ids (rows, LONGEST_PROMPT)."""
        target, first = self.target, len(self.turns.before) - 1
        shape = self.rows, target.kv_heads, self.length, target.head_dim
        cache = [torch.zeros(shape, dtype=torch.bfloat16, device=target.device) for _ in range(2 * len(target.layers))]
        positions = torch.zeros(self.rows, dtype=torch.long, device=target.device)
        rows = _Rows(positions.clone(), positions, cache)
        for place, token in enumerate(self.turns.before[:-1]):
            rows.ids.fill_(token)
            self._step(rows, place)
        rows.ids.fill_(self.turns.before[-1])
        written = []
        for place in range(LONGEST_PROMPT):
            rows.ids = drawn_from_nucleus(self._step(rows, first + place).float().softmax(-1), self.generator)
            written.append(rows.ids)
        return rows, torch.stack(written, 1)

    def _answers(self, rows: _Rows, kept: Tensor, lengths: Tensor, choice: Tensor) -> Tensor:
        """Answers (kept, n) to the prompts in the ``kept`` rows, whose ids with the end of the turn are ``lengths``
        long; ``choice`` (kept,), sorted: the places of their temperatures.
        """
        for index, part in enumerate(rows.cache):
            rows.cache[index] = part[kept]
        rows.positions = len(self.turns.before) + lengths - 1
        highest_place = int(rows.positions.max())
        for token in self.turns.between[:-1]:
            rows.ids = torch.full_like(lengths, token)
            self._step(rows, highest_place)
            highest_place += 1
        rows.ids = torch.full_like(lengths, self.turns.between[-1])
        greedy = int((choice == 0).sum())
        heats = torch.tensor(TEMPERATURES, device=choice.device)[choice[greedy:], None]
        written: list[Tensor] = []
        over = torch.zeros_like(lengths, dtype=torch.bool)
        for place in range(LONGEST_ANSWER):
            logits = self._step(rows, highest_place + place)
            rows.ids = logits.argmax(-1)
            rows.ids[greedy:] = draw((logits[greedy:].float() / heats).softmax(-1), self.generator)
            written.append(rows.ids)
            over |= rows.ids == self.turns.end
            if place % STRIDE == 0 and bool(over.all()):
                break
        return torch.stack(written, 1)

    def _step(self, rows: _Rows, highest_place: int) -> Tensor:
        """Logits (rows, vocabulary), float16, after one more token in every row, whose positions are at most
        ``highest_place``; the positions move on.
        """
        every, size = torch.arange(len(rows.ids), device=rows.ids.device), len(self.target.layers)
        room = min(-(-(highest_place + 1) // STRIDE) * STRIDE, self.length)
        unseen = torch.arange(room, device=every.device) > rows.positions[:, None]
        mask = torch.zeros(unseen.shape, device=every.device).masked_fill(unseen, -torch.inf)[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = rows.cache[layer], rows.cache[size + layer]
            keys[every, :, rows.positions], values[every, :, rows.positions] = k, v
            grouped = (q * self.target.head_dim**-0.5).unflatten(1, (self.target.kv_heads, -1))
            scores = torch.matmul(grouped, keys[:, :, :room].transpose(-1, -2)).float() + mask
            return torch.matmul(scores.softmax(-1).bfloat16(), values[:, :, :room]).flatten(1)

        last, _ = self.target.run(rows.ids, rows.positions, attend)
        rows.positions = rows.positions + 1
        return self.target.logits(last)


def _text(until_answer: list[int], prompt: str, answer: list[int], temperature: float) -> Text:
    ids = np.array(until_answer + answer, dtype=np.uint16)
    nothing = np.zeros((len(ids), 0))
    return Text(
        ids, len(until_answer), nothing.astype(np.uint16), nothing.astype(np.float16), prompt, float(temperature)
    )
