"""Texts that the target writes without any input: a user's prompt and the answer to it.

Given its chat template up to the user's turn, a chat model writes a prompt (Magpie, Xu et al. 2024, section 2.1);
the template's next tokens end that turn, and the model answers. Prompts are sampled at temperature 1 within a nucleus,
answers at one of TEMPERATURES.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from decoding.errors import UserError
from decoding.files import sha256_of, write_whole
from decoding.records.suites import Prompt

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
"""A prompt's tokens are drawn from the fewest with this probability (Holtzman et al. 2020), and at most so many."""
TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
SHARES = (0.7, 0.1, 0.1, 0.1)
"""Shares of the answers by temperature: most are greedy, because drafts are measured on greedy text."""
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


SUITE = "chat"
"""The prompt suite of prompts that the target wrote and no draft was trained on."""
SOURCE = "written by the target, sampled at temperature 1"
SPLITS: dict[Split, tuple[str, int]] = {
    "policies": ("train", 480),
    "validation": ("validation", 40),
    "test": ("test", 80),
}
"""The splits' names in a suite, whose ``train`` split serves to fit policies, and the most prompts of each."""
LONGEST = 400
"""Maximum length of a prompt in characters."""


def suite_of(texts: Iterable[Text]) -> list[Prompt]:
    """The first prompts of each split that are short enough, in the order in which they were written."""
    short = [text for text in texts if len(text.prompt) <= LONGEST]
    found = []
    for split, (name, most) in SPLITS.items():
        prompts = [text.prompt for text in short if text.split == split][:most]
        found += [Prompt(f"{SUITE}-{name}-{n:03d}", SUITE, name, prompt, SOURCE) for n, prompt in enumerate(prompts)]
    return found


def write_suite(texts: Iterable[Text], file: Path) -> int:
    """Writes the suite as JSON Lines; returns the number of its prompts. Raises OSError, UserError without any."""
    prompts = suite_of(texts)
    if not prompts:
        raise UserError("There are no texts to take prompts from. Run `python -m training align texts` first.")
    rows = [{key: value for key, value in asdict(prompt).items() if value} for prompt in prompts]
    write_whole(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return len(prompts)
