"""Which of the prompts that a chat model wrote for itself are used, and which are kept from training."""

from __future__ import annotations

import hashlib
import re
from typing import Literal

Split = Literal["train", "policies", "validation", "test"]
"""Drafts learn from ``train`` alone. Policies are fitted on ``policies``: on what a draft knows by heart they would
trust it too much.
"""

HELD_BACK = 5
"""Per cent of the prompts in each of the other splits."""
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
"""Openings by which an answer is known that stands where a prompt should."""


def good_prompt(prompt: str) -> bool:
    """Whether a text that a model wrote as its user's is one to be answered: a request in plain English letters."""
    opening = prompt.casefold().lstrip("\"'*# ")
    plain = sum(character.isascii() for character in prompt) >= 0.95 * len(prompt)
    return plain and "<|" not in prompt and len(prompt.split()) >= FEWEST_WORDS and not opening.startswith(ANSWERS)


def split_of(prompt: str) -> Split:
    """The split of a prompt by a hash of its words, so that more prompts never move one."""
    words = " ".join(re.findall(r"[a-z0-9]+", prompt.casefold()))
    place = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") % 100
    held_back: tuple[Split, ...] = ("test", "validation", "policies")
    return held_back[place // HELD_BACK] if place < len(held_back) * HELD_BACK else "train"


def key_of(prompt: str) -> str:
    """What two prompts have in common that are alike but for capitals."""
    return hashlib.sha256(prompt.casefold().encode()).hexdigest()
