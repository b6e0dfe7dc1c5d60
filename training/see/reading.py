"""Second step: the projector, and then the encoder with it, learn through the frozen chat model to answer questions.

Loss: cross-entropy of the answers' tokens. The questions of a scene share its picture tokens: they stand in one row,
and a mask hides each from the others. The template before the picture is the same in all rows; its cache is computed
once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerBase

from decoding.engines.picture_encoder import (
    TOKENS,
    TOKENS_EACH,
    WEIGHTS,
    PictureReader,
    Projector,
    Slots,
    load_reader,
    pixels,
    slots_of,
)
from decoding.errors import UserError
from decoding.pictures.draw import draw
from decoding.pictures.scenes import COLORS, MOST_THINGS, SHAPES, Scene, emoji_names, kinds
from training.align.teacher import ChatModel, turns_of

from .find import ENCODER, finding_loss, truth
from .questions import NUMBERS, Question, ask
from .scenes import training_scenes
from .states import Clock, load_state, save_state

SCENES = 4
QUESTIONS_EACH = 3
RATES = {"words": 1e-4, "mix": 4e-4, "perceptron": 1e-3, "bias": 4e-3, "begin": 4e-3, "count": 4e-3}
"""Learning rates of the projector's parts. A kind is seen in few batches, and Adam moves it far in each: its word would
be lost at the rate that suits what is in all batches.
"""
ENCODER_RATE = 2e-5
PROJECTOR, READER = "projector.safetensors", "reader.safetensors"
WARM_UP = 10
PICTURE_WEIGHT, FIRST_WEIGHT = 3.0, 2.0
"""Weights of a token that the picture decides, and of an answer's first one, which leads all others; others weigh 1."""
_COMMON = 4096  # the lowest ids are the commonest pieces of text: they and all that answers hold compete in training


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
                weights = [0.0] * len(before) + [PICTURE_WEIGHT if flag else 1.0 for flag in decided]
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


def true_slots(scenes: Sequence[Scene]) -> Slots:
    """What a faultless encoder would say of ``scenes``."""
    number = {name: index for index, name in enumerate(kinds())}
    color = {name: index for index, name in enumerate(("", *COLORS))}
    filled = torch.zeros(len(scenes), MOST_THINGS)
    kind, colors = torch.zeros(*filled.shape, len(number)), torch.zeros(*filled.shape, len(color))
    for row, scene in enumerate(scenes):
        for slot, thing in enumerate(scene.things):
            filled[row, slot] = kind[row, slot, number[thing.what.kind]] = colors[
                row, slot, color[thing.what.color]
            ] = 1
    return Slots(filled, kind, colors)


@torch.no_grad()
def start_from_words(reader: PictureReader, chat: Chat) -> None:
    """Before training, picture tokens are the chat model's own words: "picture", how many things there are, and for
    each thing its colour or first word, its last word, what is to its left, and what is to its right.
    """

    def word(text: str) -> Tensor:
        """The embeddings (words, width) of ``text``."""
        return chat.embeddings[chat.ids(f" {text}")].float()

    projector = reader.projector
    for part in (projector.words.weight, projector.perceptron.get_parameter("2.weight")):
        part.zero_()
    own, left, right = projector.words.weight.view(TOKENS_EACH, projector.width, -1).split(projector.own, dim=-1)
    for index, name in enumerate(kinds(), start=1):
        words, is_emoji = word(name), name in emoji_names().values()
        own[1, :, index] = words[-1]
        if is_emoji:
            own[0, :, index] = words[0] if len(words) > 1 else word("a")[0]
        left[2, :, index] = right[3, :, index] = words.sum(0) if is_emoji else words[-1]
    for index, name in enumerate(COLORS, start=2 + len(kinds())):
        own[0, :, index] = left[2, :, index] = right[3, :, index] = word(name)[0]
    for index, name in enumerate(NUMBERS[2:], start=len(COLORS) + len(kinds()) + 3):
        own[0, :, index] = word(name)[0]
    own[2, :, 0] = own[3, :, 0] = word("nothing")[0]
    left[2, :, 0] = right[3, :, 0] = -word("nothing")[0]
    own[2, :, 0] += word("left")[0]
    own[3, :, 0] += word("right")[0]
    for index, name in enumerate(NUMBERS):
        projector.count.weight[index] = word(name)[0]
    projector.begin.copy_(word("picture")[0])


def reading_loss(chat: Chat, tokens: Tensor, rows: Rows, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted mean of the cross-entropy, the head cut to ``candidates``; and which tokens were hit, (hits,)."""
    hidden = chat.hidden(tokens, rows)[:, :-1]
    wanted, weight = rows.ids[:, 1:], rows.weight[:, 1:]
    chosen = weight > 0
    logits = (hidden[chosen] @ chat.embeddings[candidates].T).float()
    target = torch.searchsorted(candidates, wanted[chosen])
    losses = F.cross_entropy(logits, target, reduction="none")
    return (losses * weight[chosen]).sum() / weight.sum(), logits.argmax(-1) == target


class Tally:
    """Shares of hits since the last report: by kind of question, of words that the picture decides; of all others."""

    def __init__(self) -> None:
        self.hits: dict[str, list[float]] = defaultdict(list)
        self.losses: list[tuple[float, float]] = []

    def add(self, asked: Sequence[Sequence[Question]], rows: Rows, hits: Tensor, losses: tuple[float, float]) -> None:
        self.losses.append(losses)
        predicted = rows.weight[:, 1:] > 0
        where, numbers = predicted.nonzero()[:, 0].tolist(), rows.segment[:, 1:][predicted].tolist()
        decided = (rows.weight[:, 1:][predicted] == PICTURE_WEIGHT).tolist()
        for row, number, by_picture, hit in zip(where, numbers, decided, hits.tolist(), strict=True):
            self.hits[asked[row][number].about if by_picture else "others"].append(hit)

    def __str__(self) -> str:
        reading, finding = (mean(column) for column in zip(*self.losses, strict=True))
        shares = ", ".join(f"{about} {mean(hits):.2f}" for about, hits in sorted(self.hits.items()))
        return f"loss {reading:.3f} finding {finding:.3f}; {shares}"


def answer_candidates(chat: Chat) -> Tensor:
    """The sorted ids that compete in training: all that answers may hold, and the commonest."""
    names = [*kinds(), *COLORS, *SHAPES]
    texts = [form for name in names for form in (f" {name}", f" {name}s", f" {name}es")]
    used = {number for text in texts for number in chat.ids(text)} | {chat.turns.end}
    random = Random(0)
    for scene in islice(training_scenes(0), 500):
        for question in ask(scene, random, 7):
            used.update(chat.ids(question.answer))
    return torch.tensor(sorted(used | set(range(_COMMON))))


def _groups(projector: Projector) -> list[dict[str, Any]]:
    """The projector's parameters by part, each with its learning rate."""
    named = dict(projector.named_parameters())
    return [
        {"params": [value for name, value in named.items() if name.split(".")[0] == part], "lr": rate}
        for part, rate in RATES.items()
    ]


def train_projector(model: ChatModel, states: Path, minutes: float) -> None:
    """Trains the projector alone, on what the scenes hold, for ``minutes`` in all; the state is kept in ``states``."""
    chat = Chat(model)
    reader = PictureReader(chat.width)
    start_from_words(reader, chat)

    def slots(scenes: Sequence[Scene]) -> tuple[Slots, Tensor]:
        return true_slots(scenes), torch.zeros(())

    optimiser = torch.optim.AdamW(_groups(reader.projector), weight_decay=0.0)
    _train(chat, reader.projector, reader.projector, optimiser, states / PROJECTOR, minutes, slots)


def train_reader(model: ChatModel, states: Path, minutes: float, shipped: Path) -> None:
    """Trains encoder and projector together, from pictures, for ``minutes`` in all; the state is kept in ``states``.

    They start from what the two steps before left in ``states``; what is missing there, from ``shipped``.
    """
    chat = Chat(model)
    reader, _ = newest_reader(states, shipped, chat.width)

    def slots(scenes: Sequence[Scene]) -> tuple[Slots, Tensor]:
        cells = reader.encoder(pixels([draw(scene) for scene in scenes]))
        return slots_of(cells), finding_loss(cells, truth(scenes))

    groups = [*_groups(reader.projector), {"params": list(reader.encoder.parameters()), "lr": ENCODER_RATE}]
    optimiser = torch.optim.AdamW(groups, weight_decay=0.0)
    _train(chat, reader, reader.projector, optimiser, states / READER, minutes, slots)


def newest_reader(states: Path, shipped: Path, width: int) -> tuple[PictureReader, dict[str, tuple[int, float]]]:
    """The reader of the newest step, and steps and seconds by file. Raises UserError if there is none."""
    reader = PictureReader(width)
    if (shipped / WEIGHTS).is_file():
        reader = load_reader(shipped / WEIGHTS, width).train()
    parts: tuple[tuple[str, nn.Module], ...] = (
        (ENCODER, reader.encoder),
        (PROJECTOR, reader.projector),
        (READER, reader),
    )
    found = {name: load_state(states / name, part) for name, part in parts if (states / name).is_file()}
    if not (shipped / WEIGHTS).is_file() and READER not in found and not {ENCODER, PROJECTOR} <= set(found):
        raise UserError("Train the encoder and the projector first: `python -m training see encoder --minutes 30`.")
    return reader, found


def _train(
    chat: Chat,
    trained: nn.Module,
    projector: Projector,
    optimiser: torch.optim.Optimizer,
    file: Path,
    minutes: float,
    slots_for: Callable[[Sequence[Scene]], tuple[Slots, Tensor]],
) -> None:
    """The loop of both: ``slots_for`` gives a batch's slots and the encoder's own loss."""
    candidates = answer_candidates(chat)
    clock = Clock(load_state(file, trained, optimiser), minutes)
    rates = [group["lr"] for group in optimiser.param_groups]
    random, scenes = Random(clock.step), training_scenes(seed=10_000 + clock.step)
    tally = Tally()
    while not clock.done:
        batch = list(islice(scenes, SCENES))
        asked = [ask(scene, random, QUESTIONS_EACH) for scene in batch]
        rows = chat.rows(asked)
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * min(1, (clock.step + 1) / WARM_UP) * clock.cooling
        slots, finding = slots_for(batch)
        loss, hits = reading_loss(chat, projector(slots), rows, candidates)
        optimiser.zero_grad()
        (loss + finding).backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimiser.step()
        tally.add(asked, rows, hits, (loss.item(), finding.item()))
        if clock.tick():
            print(f"{clock} {tally}", flush=True)
            save_state(file, trained, optimiser, clock)
            tally = Tally()
    save_state(file, trained, optimiser, clock)
