"""Which of the prompts written by a chat model are used, and which are held out of training."""

from __future__ import annotations

import re
from typing import Literal

from decoding.files import sha256_of

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


def split_of(prompt: str) -> Split:
    """The split of a prompt, by a hash of its words: writing more prompts never moves one to another split."""
    words = " ".join(re.findall(r"[a-z0-9]+", prompt.casefold()))
    place = int(sha256_of(words)[:16], 16) % 100
    held_back: tuple[Split, ...] = ("test", "validation", "policies")
    return held_back[place // HELD_BACK] if place < len(held_back) * HELD_BACK else "train"


def key_of(prompt: str) -> str:
    """A key that is equal for prompts that differ only in case."""
    return sha256_of(prompt.casefold())
