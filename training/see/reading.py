"""Second step: the projector, and then the encoder with it, learn through the frozen chat model to answer questions.

Loss: cross-entropy of the answers' tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoding.engines.picture_encoder import (
    PictureReader,
    Projector,
    Slots,
    has_weights,
    load_reader,
    pixels,
    slots_of,
)
from decoding.errors import UserError
from decoding.pictures.draw import draw
from decoding.pictures.scenes import COLORS, MOST_THINGS, SHAPES, Scene, What, emoji_names, kinds
from training.align.teacher import ChatModel

from .chat import PICTURE_WEIGHT, Chat, Rows
from .find import COLOR_NUMBERS, ENCODER, KINDS, finding_loss, truth
from .questions import NUMBERS, Question, ask, one
from .scenes import training_scenes
from .states import Cooling, load_state, train

SCENES = 4
QUESTIONS_EACH = 4
RATES = {"words": 1e-4, "aside": 1e-4, "mix": 4e-4, "perceptron": 1e-3} | dict.fromkeys(
    ("bias", "begin", "count", "nothing"), 4e-3
)
"""Learning rates of the projector's parts. A kind is seen in few batches, and Adam moves it far in each: its word would
be lost at the rate that suits what is in all batches.
"""
ENCODER_RATE = 2e-5
PROJECTOR, READER = "projector", "reader"
WARM_UP = 10
_COMMON = 4096  # the lowest ids are the commonest pieces of text: they and all that answers hold compete in training


def true_slots(scenes: Sequence[Scene]) -> Slots:
    """What a faultless encoder would say of ``scenes``."""
    filled = torch.zeros(len(scenes), MOST_THINGS)
    kind, color = torch.zeros(*filled.shape, len(KINDS)), torch.zeros(*filled.shape, len(COLOR_NUMBERS))
    for row, scene in enumerate(scenes):
        for slot, thing in enumerate(scene.things):
            filled[row, slot] = 1
            kind[row, slot, KINDS[thing.what.kind]] = 1
            color[row, slot, COLOR_NUMBERS[thing.what.color]] = 1
    return Slots(filled, kind, color)


@torch.no_grad()
def start_from_words(reader: PictureReader, chat: Chat) -> None:
    """Before training, picture tokens are the chat model's own words: "picture", how many things there are, and for
    each thing its number, colour, article or first word, and its last word; so too for what is to its left and right.
    """

    def word(text: str) -> Tensor:
        """The embeddings (words, width) of ``text``."""
        return chat.embeddings[chat.ids(f" {text}")].float()

    projector = reader.projector
    for part in (projector.words.weight, projector.aside.weight, projector.perceptron.get_parameter("2.weight")):
        part.zero_()
    own, aside = (layer.weight.view(-1, projector.width, projector.own) for layer in (projector.words, projector.aside))
    for index, name in enumerate(kinds(), start=2):
        for vectors in (own, aside):
            vectors[1, :, index] = word(name)[-1]
            if name in emoji_names().values():
                vectors[0, :, index] = word(name if len(word(name)) > 1 else one(What(name)))[0]
    for index, name in enumerate(COLORS, start=3 + len(kinds())):
        own[0, :, index] = aside[0, :, index] = word(name)[0]
    for index, name in enumerate(NUMBERS[2:], start=4 + len(kinds()) + len(COLORS)):
        own[0, :, index] = word(name)[0]
    own[2, :, 0], own[3, :, 0] = word("left")[0], word("right")[0]
    projector.nothing.copy_(word("nothing"))
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
        decided = (rows.weight[:, 1:][predicted] >= PICTURE_WEIGHT).tolist()
        for row, number, by_picture, hit in zip(where, numbers, decided, hits.tolist(), strict=True):
            self.hits[asked[row][number].about if by_picture else "others"].append(hit)

    def told(self) -> str:
        """The report; the next one begins."""
        reading, finding = (mean(column) for column in zip(*self.losses, strict=True))
        shares = ", ".join(f"{about} {mean(hits):.2f}" for about, hits in sorted(self.hits.items()))
        self.hits.clear()
        self.losses.clear()
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
    losses = partial(_losses, chat, reader.projector, slots)
    train(states, PROJECTOR, reader.projector, Cooling(optimiser, WARM_UP), minutes, losses)


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
    losses = partial(_losses, chat, reader.projector, slots)
    train(states, READER, reader, Cooling(optimiser, WARM_UP), minutes, losses)


def newest_reader(states: Path, shipped: Path, width: int) -> tuple[PictureReader, dict[str, tuple[int, float]]]:
    """The reader of the newest step, and steps and seconds by step. Raises UserError if there is none."""
    reader = PictureReader(width)
    if has_weights(shipped):
        reader = load_reader(shipped, width).train()
    parts: tuple[tuple[str, nn.Module], ...] = (
        (ENCODER, reader.encoder),
        (PROJECTOR, reader.projector),
        (READER, reader),
    )
    found = {name: state for name, part in parts if (state := load_state(states, name, part))}
    if not has_weights(shipped) and READER not in found and not {ENCODER, PROJECTOR} <= set(found):
        raise UserError("Train the encoder and the projector first: `python -m training see encoder --minutes 30`.")
    return reader, found


def _losses(
    chat: Chat, projector: Projector, slots_for: Callable[[Sequence[Scene]], tuple[Slots, Tensor]], step: int
) -> Iterator[tuple[Tensor, Callable[[], str]]]:
    """Of both: ``slots_for`` gives a batch's slots and the encoder's own loss."""
    candidates, tally = answer_candidates(chat), Tally()
    random, scenes = Random(step), training_scenes(seed=10_000 + step)
    while True:
        batch = list(islice(scenes, SCENES))
        asked = [ask(scene, random, QUESTIONS_EACH) for scene in batch]
        rows = chat.rows(asked)
        slots, finding = slots_for(batch)
        loss, hits = reading_loss(chat, projector(slots), rows, candidates)
        tally.add(asked, rows, hits, (loss.item(), finding.item()))
        yield loss + finding, tally.told
