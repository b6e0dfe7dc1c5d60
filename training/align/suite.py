"""The prompt suite ``chat``: prompts that the target wrote and no draft was trained on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from decoding.errors import UserError
from decoding.files import write_whole
from decoding.records.suites import Prompt

from .texts import Split, Text

SUITE = "chat"
SOURCE = "written by the target, sampled at temperature 1"
COUNTS: dict[Split, int] = {"policies": 480, "validation": 40, "test": 80}
"""Maximum number of prompts in each split."""
NAMES: dict[Split, str] = {"policies": "train", "validation": "validation", "test": "test"}
"""The splits' names in a suite, whose ``train`` split serves to fit policies."""
LONGEST = 400
"""Maximum length of a prompt in characters."""


def suite_of(texts: Iterable[Text]) -> list[Prompt]:
    """The first prompts of each split that are short enough, in the order in which they were written."""
    found: dict[Split, list[Prompt]] = {split: [] for split in COUNTS}
    for text in texts:
        rows = found.get(text.split)
        if rows is None or len(rows) >= COUNTS[text.split] or len(text.prompt) > LONGEST:
            continue
        name = NAMES[text.split]
        rows.append(Prompt(f"{SUITE}-{name}-{len(rows):03d}", SUITE, name, text.prompt, SOURCE))
    return [prompt for rows in found.values() for prompt in rows]


def write_suite(texts: Iterable[Text], file: Path) -> int:
    """Writes the suite as JSON Lines; returns the number of its prompts. Raises OSError, UserError without any."""
    prompts = suite_of(texts)
    if not prompts:
        raise UserError("There are no texts to take prompts from. Run `python -m training align texts` first.")
    rows = [{key: value for key, value in asdict(prompt).items() if value} for prompt in prompts]
    write_whole(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return len(prompts)
