"""Texts that the target writes without any input: a user's prompt and the answer to it.

Given its chat template up to the user's turn, a chat model writes a prompt (Magpie, Xu et al. 2024, section 2.1);
the template's next tokens end that turn, and the model answers. Prompts are sampled at temperature 1 within a nucleus
of 0.95, answers at one of TEMPERATURES.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from decoding.files import sha256_of

from .losses import draw
from .rows import RowDecoder

Split = Literal["train", "policies", "validation", "test"]
"""Drafts are trained on ``train`` only. Policies are fitted on ``policies``: fitted on the draft's training texts, they
would overestimate the draft.
"""

HELD_BACK = 5
"""Percentage of the prompts in each of the other splits."""
FEWEST_WORDS = 4
ANSWERS = (
    "sure",
    "certainly",
    "of course",
    "here is",
    "here's",
    "here are",
    "i'm sorry",
    "i apologize",
    "as an ai",
    "yes,",
    "no,",
    "thank you",
    "thanks",
    "you're welcome",
    "i'd be happy",
    "i'm glad",
    "great question",
    "hello! how can i",
)
"""Openings that are typical of an answer, not of a prompt."""


def good_prompt(prompt: str) -> bool:
    """Whether a text that the model wrote in the user's turn is usable as a prompt: almost all ASCII, not too short,
    and no answer.
    """
    opening = prompt.casefold().lstrip("\"'*# ")
    plain = sum(character.isascii() for character in prompt) >= 0.95 * len(prompt)
    return plain and "<|" not in prompt and len(prompt.split()) >= FEWEST_WORDS and not opening.startswith(ANSWERS)


def new_prompt(ids: list[int], tokenizer: PreTrainedTokenizerBase, seen: set[str]) -> str:
    """The prompt that the model wrote as ``ids``, whose key joins ``seen``; empty if it is not usable or not new."""
    prompt = str(tokenizer.decode(ids)).strip()
    if key_of(prompt) in seen or not good_prompt(prompt):
        return ""
    seen.add(key_of(prompt))
    return prompt


def split_of(prompt: str) -> Split:
    """The split of a prompt, by a hash of its words: writing more prompts never moves one to another split."""
    words = " ".join(re.findall(r"[a-z0-9]+", prompt.casefold()))
    place = int(sha256_of(words)[:16], 16) % 100
    held_back: tuple[Split, ...] = ("test", "validation", "policies")
    return held_back[place // HELD_BACK] if place < len(held_back) * HELD_BACK else "train"


def key_of(prompt: str) -> str:
    """A key that is equal for prompts that differ only in case."""
    return sha256_of(prompt.casefold())


TOP = 32
"""Tokens whose log-probabilities are kept at each position."""
NUCLEUS, NUCLEUS_TOKENS = 0.95, 256
BLOCK = 64
"""Adjacent ids of the vocabulary that ``highest`` treats as one block."""
TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
SHARES = (0.7, 0.1, 0.1, 0.1)
"""Shares of the answers by temperature: most are greedy, because drafts are measured on greedy text."""
LEAST = 1e-7
"""Lower bound on stored probabilities, so that their logarithms stay finite in half precision."""
LONGEST_PROMPT, LONGEST_ANSWER = 80, 160


@dataclass(frozen=True, slots=True)
class Turns:
    """Token ids of the chat template: before a prompt, between prompt and answer, and the end of a turn."""

    before: list[int]
    between: list[int]
    end: int


@dataclass(frozen=True, slots=True)
class Text:
    """Ids (n,) that follow ``Turns.before``, the answer from index ``answer`` on; the target's TOP most probable ids
    and their log-probabilities at each position (n, TOP); the prompt, and the temperature of the answer. ``states``
    (n, layers, width), where they are kept: the target's hidden states when it had read each of ``Turns.before[-1:]``
    and ``ids[:-1]``, from which that position's token was written; bfloat16 as uint16, which numpy can hold.
    """

    ids: np.ndarray
    answer: int
    top_ids: np.ndarray
    top_logp: np.ndarray
    prompt: str
    temperature: float
    states: np.ndarray | None = None

    @property
    def split(self) -> Split:
        return split_of(self.prompt)


@dataclass(slots=True)
class _Row:
    """One unfinished text: its ids so far, the template's ids that must follow, and (ids, log-probabilities, hidden
    states) of each pass.
    """

    answer_temperature: float
    ids: list[int] = field(default_factory=list)
    dictated: list[int] = field(default_factory=list)
    answer: int = 0
    prompt: str = ""
    kept: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    @property
    def temperature(self) -> float:
        return self.answer_temperature if self.answer else 1.0


def highest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` highest logits (rows, count) and their ids, highest first.

    They are all in the ``count`` blocks with the highest maxima; this search takes a quarter of the time of ``topk``.
    """
    rows, vocabulary = logits.shape
    if vocabulary % BLOCK or vocabulary < BLOCK * count:
        values, ids = logits.topk(count)
        return values, ids
    blocks = logits.view(rows, -1, BLOCK)
    best = blocks.amax(-1).topk(count, sorted=False).indices
    inside = blocks.gather(1, best[..., None].expand(-1, -1, BLOCK)).flatten(1)
    values, places = inside.topk(count)
    return values, best.gather(1, places // BLOCK) * BLOCK + places % BLOCK


def sample(
    logits: Tensor,
    probabilities: Tensor,
    best: Tensor,
    temperatures: Tensor,
    nucleus: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Ids (rows,) drawn from logits (rows, vocabulary) and their probabilities at temperature 1.

    ``best`` (rows,) is taken where the temperature is 0. ``nucleus`` (rows,), booleans: draw from the nucleus.
    """
    chosen = best.clone()
    plain = ((temperatures > 0) & ~nucleus).nonzero()[:, 0]
    if len(plain):
        chosen[plain] = draw((logits[plain].float() / temperatures[plain, None]).softmax(-1), generator)
    if bool(nucleus.any()):
        chosen[nucleus] = drawn_from_nucleus(probabilities[nucleus], generator)
    return chosen


def drawn_from_nucleus(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """Ids (rows,) drawn from the fewest tokens with NUCLEUS of the probability (Holtzman et al. 2020)."""
    weights, ids = highest(probabilities, min(NUCLEUS_TOKENS, probabilities.shape[-1]))
    weights[weights.cumsum(-1) - weights > NUCLEUS] = 0
    return ids.gather(-1, draw(weights, generator)[:, None])[:, 0]


class Stream:
    """Writes an endless stream of texts; ``step`` returns those that a pass has finished."""

    def __init__(
        self, decoder: RowDecoder, turns: Turns, tokenizer: PreTrainedTokenizerBase, seen: set[str], seed: int
    ) -> None:
        self.decoder, self.turns, self.tokenizer, self.seen = decoder, turns, tokenizer, seen
        self.generator = torch.Generator().manual_seed(seed)
        self.rows = [self._begin() for _ in range(decoder.rows)]
        self.ids = torch.full((decoder.rows,), turns.before[-1])

    def _begin(self) -> _Row:
        place = int(torch.multinomial(torch.tensor(SHARES), 1, generator=self.generator))
        return _Row(TEMPERATURES[place])

    def step(self) -> list[Text]:
        """One pass, which adds a token to each row; returns the finished texts."""
        order = self.decoder.arrange()
        if order is not None:
            self.rows, self.ids = [self.rows[row] for row in order], self.ids[torch.tensor(order)]
        logits = self.decoder.step(self.ids)
        states = self.decoder.states
        probabilities = logits.float().softmax(-1)  # several times as fast as logsumexp
        _, top_ids = highest(logits, TOP)
        top_logp = probabilities.gather(-1, top_ids).clamp_min(LEAST).log().half()
        temperatures = torch.tensor([row.temperature for row in self.rows])
        nucleus = torch.tensor([not row.answer for row in self.rows])
        best = top_ids[:, 0]
        drawn = sample(logits, probabilities, best, temperatures, nucleus, self.generator).tolist()
        ended = []
        for index, row in enumerate(self.rows):
            token = row.dictated.pop(0) if row.dictated else drawn[index]
            row.ids.append(token)
            row.kept.append((top_ids[index], top_logp[index], states[index]))
            if self._over(row, token):
                if row.answer and len(row.ids) > row.answer + 1:
                    ended.append(self._text(row))
                self.decoder.restart(index)
                self.rows[index], token = self._begin(), self.turns.before[-1]
            self.ids[index] = token
        return ended

    def _over(self, row: _Row, token: int) -> bool:
        """Whether this token ends the row: the end of an answer, or of a prompt that is refused."""
        if row.answer:
            return len(row.ids) > row.answer and (
                token == self.turns.end or len(row.ids) - row.answer >= LONGEST_ANSWER
            )
        if token != self.turns.end:
            return len(row.ids) >= LONGEST_PROMPT
        row.prompt = new_prompt(row.ids[:-1], self.tokenizer, self.seen)
        if not row.prompt:
            return True
        row.dictated = list(self.turns.between[1:])
        row.answer = len(row.ids) + len(row.dictated)
        return False

    def _text(self, row: _Row) -> Text:
        top_ids, top_logp, states = (torch.stack(each) for each in zip(*row.kept))
        return Text(
            np.array(row.ids, dtype=np.uint16),
            row.answer,
            top_ids.numpy().astype(np.uint16),
            top_logp.numpy(),
            row.prompt,
            row.answer_temperature,
            states.view(torch.uint16).numpy(),
        )
