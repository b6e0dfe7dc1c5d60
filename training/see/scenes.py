"""Random scenes for training and testing, told apart by a hash of their layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from decoding.pictures.scenes import COLORS, DIGITS, MOST_THINGS, SHAPES, Scene, What, emoji_names, layout
from decoding.records.suites import Prompt
from training.align.suite import write_prompts

from .questions import QUESTIONS, Question

RARE = tuple(emoji_names().values())[5::10][:20]
"""Emoji that stand in no training scene beside another thing."""
_HELD_OUT = 10  # one scene of so many is for testing


def is_held_out(scene: Scene) -> bool:
    return int(scene.digest, 16) % _HELD_OUT == 0


def training_scenes(seed: int) -> Iterator[Scene]:
    """Scenes of one to six things without end; RARE emoji stand alone."""
    random = Random(seed)
    common = [name for name in emoji_names().values() if name not in RARE]
    while True:
        count = random.choice((1, 2, 2, 2, 3, 3, 3, 4, 5, 6))
        rare = count == 1 and random.random() < 1 / 3  # more often than by chance: this is all that is seen of them
        scene = _scene(RARE if rare else common, count, random)
        if not is_held_out(scene):
            yield scene


def held_out_scenes(seed: int, count: int, least: int = 1, most: int = 3, names: Sequence[str] = ()) -> Iterator[Scene]:
    """``count`` held-out scenes of ``least`` to ``most`` things; ``names``: emoji to choose from, instead of all."""
    random = Random(f"test {seed}")
    while count:
        scene = _scene(names or tuple(emoji_names().values()), random.randint(least, most), random)
        if is_held_out(scene):
            count -= 1
            yield scene


def _scene(names: Sequence[str], count: int, random: Random) -> Scene:
    return layout(some_things(names, count, random), random.getrandbits(48))


def some_things(names: Sequence[str], count: int, random: Random) -> list[What]:
    """``count`` things: a quarter of the new ones are signs, a quarter of all repeat an earlier one."""
    whats: list[What] = []
    while len(whats) < count:
        if whats and random.random() < 0.25:
            whats.append(random.choice(whats))
        elif random.random() < 0.25:
            whats.append(What(random.choice(SHAPES + DIGITS), random.choice(tuple(COLORS))))
        else:
            whats.append(What(random.choice(names)))
    assert len(whats) <= MOST_THINGS
    return whats


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
