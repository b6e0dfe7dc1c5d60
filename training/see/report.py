"""Measures the shipped reader on held-out scenes: the chat model's own greedy answers, against the right ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
import torch.nn.functional as F

from decoding.engines.picture_encoder import TOKENS, PictureReader, pixels, slots_of
from decoding.pictures.draw import draw
from decoding.pictures.scenes import Scene, kinds

from .chat import Chat
from .find import truth
from .questions import QUESTIONS, SAMPLES, Question, plural
from .scenes import RARE, held_out_scenes

MOST_TOKENS = 40
BATCH = 32
GROUPS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "up to three things": (1, 3, ()),
    "four to six things": (4, 6, ()),
    "two or three things, emoji that training shows only alone": (2, 3, RARE),
}
"""Groups of held-out scenes: least and most things, and the emoji in it."""

_FORMS = {plural(kind): kind for kind in kinds()} | {kind: kind for kind in kinds()}
_NAMES = re.compile(r"\b(" + "|".join(sorted(map(re.escape, _FORMS), key=len, reverse=True)) + r")\b")


def kinds_named(text: str) -> set[str]:
    """The kinds of things that ``text`` names, in the singular."""
    return {_FORMS[found] for found in _NAMES.findall(text)}


@torch.inference_mode()
def answers(chat: Chat, reader: PictureReader, asked: Sequence[tuple[Scene, Question]]) -> list[str]:
    """The chat model's greedy answer to each question about its scene."""
    texts = []
    for start in range(0, len(asked), BATCH):
        part = asked[start : start + BATCH]
        tokens = reader(pixels([draw(scene) for scene, _ in part])).to(chat.embeddings.dtype)
        texts += _greedy(chat, tokens, [chat.ids(question.text) for _, question in part])
    return texts


def _greedy(chat: Chat, tokens: torch.Tensor, questions: Sequence[Sequence[int]]) -> list[str]:
    rows = [
        torch.cat(
            [
                F.embedding(torch.tensor(chat.turns.before), chat.embeddings),
                tokens[number],
                F.embedding(torch.tensor([*ids, *chat.turns.between]), chat.embeddings),
            ]
        )
        for number, ids in enumerate(questions)
    ]
    length = max(map(len, rows))
    embeddings = torch.stack([F.pad(row, (0, 0, length - len(row), 0)) for row in rows])
    seen = torch.stack([F.pad(torch.ones(len(row)), (length - len(row), 0)) for row in rows]).long()
    end = chat.turns.end
    model: Any = chat.model  # its type says nothing of generate
    ids = model.generate(
        inputs_embeds=embeddings,
        attention_mask=seen,
        max_new_tokens=MOST_TOKENS,
        do_sample=False,
        eos_token_id=end,
        pad_token_id=end,
    )
    return [text.strip() for text in chat.tokenizer.batch_decode(ids, skip_special_tokens=True)]


def measure(chat: Chat, reader: PictureReader, scenes: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """The figures of the card: per group of scenes, the share of right answers to each kind of question."""
    figures: dict[str, Any] = {"scenes": scenes, "picture tokens": TOKENS, "groups": {}}
    for group, (least, most, names) in GROUPS.items():
        random = Random(group)
        found = list(held_out_scenes(len(group), scenes, least, most, names))
        asked = [
            (scene, question) for scene in found for about in SAMPLES if (question := QUESTIONS[about](scene, random))
        ]
        rows = figures["groups"][group] = {"encoder": encoder_share(reader, found)}
        rows |= shares_right(asked, answers(chat, reader, asked), tell)
        tell(f"{group}: " + ", ".join(f"{name} {share:.3f}" for name, share in rows.items()))
    return figures


def shares_right(
    asked: Sequence[tuple[Scene, Question]], said: Sequence[str], tell: Callable[[str], None]
) -> dict[str, float]:
    """The share of answers that are right to the letter, by kind of question; of "what", those with the right kinds."""
    right: dict[str, list[bool]] = {}
    for (scene, question), text in zip(asked, said, strict=True):
        right.setdefault(question.about, []).append(text == question.answer)
        if question.about == "what":
            true = {thing.what.kind for thing in scene.things}
            right.setdefault("right kinds", []).append(kinds_named(text) == true)
        if text != question.answer:
            tell(f"  {question.text} {text} [{question.answer}]")
    return {about: sum(hits) / len(hits) for about, hits in right.items()}


@torch.inference_mode()
def encoder_share(reader: PictureReader, scenes: Sequence[Scene]) -> float:
    """The share of scenes in which the encoder finds every thing, and nothing else, with its kind and colour."""
    slots = slots_of(reader.encoder(pixels([draw(scene) for scene in scenes])))
    true, hits = truth(scenes), 0
    for row in range(len(scenes)):
        wanted = true[true[:, 0] == row][:, 2:4].long().tolist()
        count = int(slots.filled[row].sum())
        found = torch.stack([slots.kind[row, :count].argmax(-1), slots.color[row, :count].argmax(-1)], dim=-1)
        hits += found.tolist() == wanted
    return hits / len(scenes)
