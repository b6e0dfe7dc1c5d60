"""The target's continuations of test prompts, from which a person chooses three for the card."""

from __future__ import annotations

import json
import random

from rich.console import Console
from rich.text import Text as RichText

from decoding.records.fingerprint import fingerprint
from decoding.records.suites import Prompt, load_suite
from training.measure import load_bf16, write_texts_of
from training.places import PAIR

CHOSEN = PAIR / "continuations.json"
"""``{"fingerprint": of the target, "chosen": [{"id": of the prompt, "remark": a reader's comment}]}``."""


def print_continuations(count: int) -> None:
    """Prints ``count`` test prompts and their greedy continuations."""
    prompts = random.Random(0).sample(load_suite("all", "test"), count)
    console = Console()
    for prompt, text in zip(prompts, continue_prompts(prompts), strict=True):
        console.rule(prompt.id)
        console.print(RichText(prompt.prompt, style="dim"))
        console.print(RichText(text, style="bold"))


def continue_prompts(prompts: list[Prompt]) -> list[str]:
    """The shipped target's greedy text after each prompt."""
    folder = PAIR / "target"
    tokenizer, texts = write_texts_of(load_bf16(folder), folder, prompts)
    return tokenizer.batch_decode(texts, skip_special_tokens=True)


def chosen_continuations() -> list[dict[str, str]]:
    """The chosen continuations as rows of prompt, text and remark; empty if they belong to other weights."""
    if not CHOSEN.is_file():
        return []
    saved = json.loads(CHOSEN.read_text())
    if saved["fingerprint"] != fingerprint(PAIR / "target"):
        return []
    by_id = {prompt.id: prompt for prompt in load_suite("all", "test")}
    prompts = [by_id[row["id"]] for row in saved["chosen"]]
    texts = continue_prompts(prompts)
    return [
        {"id": prompt.id, "prompt": prompt.prompt, "text": text, "remark": row["remark"]}
        for prompt, text, row in zip(prompts, texts, saved["chosen"], strict=True)
    ]
