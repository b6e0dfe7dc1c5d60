"""The prompt suite ``pictures``: questions about held-out scenes, on which nothing of the reader was trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from decoding.pictures.scenes import What, emoji_names, layout
from decoding.records.suites import Prompt
from training.align.suite import write_prompts

from .questions import QUESTIONS, Question
from .scenes import is_held_out, some_things

SUITE = "pictures"
SOURCE = "training/see: a scene that training never shows"
COUNTS = {"validation": 30, "test": 60}
MOST = 4
"""Things in a scene: with more the reader is often wrong."""


def written(whats: list[What], seed: int) -> str:
    """The scene as a request writes it."""
    emoji = {name: text for text, name in emoji_names().items()}
    return " ".join(f"{what.color}-{what.kind}" if what.color else emoji[what.kind] for what in whats) + f" #{seed}"


def asked(random: Random) -> Iterator[tuple[str, Question]]:
    """Held-out scenes, each with a question, without end."""
    names = tuple(emoji_names().values())
    while True:
        whats, seed = some_things(names, random.randint(1, MOST), random), random.randrange(10**6)
        scene = layout(whats, seed)
        question = random.choice(list(QUESTIONS.values()))(scene, random)
        if question and is_held_out(scene):
            yield written(whats, seed), question


def write_suite(file: Path) -> int:
    """Writes the suite as JSON Lines; returns the number of its prompts."""
    questions = asked(Random(SUITE))
    prompts = [
        Prompt(f"{SUITE}-{split}-{number:03d}", SUITE, split, question.text, SOURCE, picture=picture)
        for split, count in COUNTS.items()
        for number, (picture, question) in zip(range(count), questions)
    ]
    return write_prompts(prompts, file)
