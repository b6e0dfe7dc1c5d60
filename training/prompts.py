"""Writes the prompt suites: cuts from held-out files, and generated structured text.

All prompts of a file are in one split, so that nothing tuned on one split has seen a file of another.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict

from transformers import PreTrainedTokenizerBase

from decoding.errors import UserError
from decoding.files import sha256_of
from decoding.records.suites import SPLITS, SUITES, Prompt
from training.corpus import Document, read_documents
from training.files import replacing_file
from training.places import PROMPTS
from training.structured import structured_prompts
from training.tokenizer import load_tokenizer

WANTED = {"train": 120, "validation": 40, "test": 80}
TOKENS = (30, 250)
"""Minimum and maximum number of tokens of a prompt."""


def split_of(document: Document) -> str:
    """A held-out file's split, by a hash of its name, in the proportions of WANTED."""
    number = int(sha256_of(f"split {document.package}/{document.path}")[:8], 16)
    return "train" if number % 240 < 120 else "validation" if number % 240 < 160 else "test"


def cut_code(text: str, rng: random.Random) -> Iterator[str]:
    """Cuts after a function's signature, with up to 14 lines before it."""
    lines = text.splitlines()
    ends = [index for index, line in enumerate(lines) if re.match(r"\s*(async )?def \w+\(.*\).*:$", line)]
    for end in rng.sample(ends, len(ends)):
        yield "\n".join(lines[max(0, end - rng.randint(3, 14)) : end + 1]).lstrip("\n")


def cut_tests(text: str, rng: random.Random) -> Iterator[str]:
    """Cuts after a test's signature or assertion, with the tests before it, which show the pattern."""
    lines = text.splitlines()
    ends = [
        i
        for i, line in enumerate(lines)
        if re.match(r"\s*((async )?def test\w*\(.*:$|assert |self\.assert\w+\()", line)
    ]
    for end in rng.sample(ends, len(ends)):
        yield "\n".join(lines[max(0, end - rng.randint(9, 24)) : end + 1]).lstrip("\n")


def cut_prose(text: str, rng: random.Random) -> Iterator[str]:
    """Cuts inside a sentence of an English paragraph, with the paragraph before it; three per paragraph."""
    paragraphs = text.split("\n\n")
    ends = [index for index, paragraph in enumerate(paragraphs) if is_english(paragraph)]
    for end in rng.sample(ends, len(ends)) * 3:
        words = paragraphs[end].split(" ")
        cut = " ".join(words[: rng.randint(len(words) // 3, 2 * len(words) // 3)])
        before = paragraphs[end - 1] + "\n\n" if end and is_english(paragraphs[end - 1]) else ""
        yield (before + cut).lstrip("\n")


def is_english(paragraph: str) -> bool:
    """Whether this is running text of some length: mostly letters, no markup, no code."""
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    return len(paragraph) > 130 and letters > 0.87 * len(paragraph) and not re.search(r">>>|[=|{}<>]|::|   ", paragraph)


CUTS: dict[str, Callable[[str, random.Random], Iterator[str]]] = {
    "code": cut_code,
    "prose": cut_prose,
    "tests": cut_tests,
}


def usable_cuts(document: Document, suite: str, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """A file's cuts of suitable length, in a fixed random order."""
    rng = random.Random(document.path)
    cuts = dict.fromkeys(CUTS[suite](document.text, rng))
    return [cut for cut in cuts if TOKENS[0] <= len(tokenizer(cut).input_ids) <= TOKENS[1]]


def cut_suite(suite: str, documents: list[Document], tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    """The suite's prompts: one of each file, then a second of each, until every split has WANTED."""
    files = sorted((d for d in documents if d.kind == suite), key=lambda d: sha256_of(d.path))
    prompts: list[Prompt] = []
    seen: set[str] = set()
    for split in SPLITS:
        cuts = [(d, usable_cuts(d, suite, tokenizer)) for d in files if split_of(d) == split]
        rounds = range(max((len(found) for _, found in cuts), default=0))
        turns = [(d, found[turn]) for turn in rounds for d, found in cuts if turn < len(found)]
        first: dict[str, Document] = {}  # new cut -> the document that it is from
        for document, cut in turns:
            if cut not in seen:
                first.setdefault(cut, document)
        seen.update(first)
        chosen = [(document, cut) for cut, document in first.items()][: WANTED[split]]
        if len(chosen) < WANTED[split]:
            raise UserError(
                f"Held-out files give only {len(chosen)} of {WANTED[split]} prompts for {suite}/{split}. "
                "Give the corpus more packages."
            )
        prompts += [
            Prompt(f"{suite}-{split}-{number:03d}", suite, split, cut, f"{d.package}: {d.path}")
            for number, (d, cut) in enumerate(chosen)
        ]
    return prompts


def generate_structured() -> list[Prompt]:
    """The structured suite; each split has its own seed."""
    seen: set[str] = set()
    prompts: list[Prompt] = []
    for seed, split in enumerate(SPLITS):
        rows = [row for row in structured_prompts(2 * WANTED[split], seed) if row[1] not in seen][: WANTED[split]]
        seen |= {text for _, text in rows}
        prompts += [
            Prompt(f"structured-{split}-{number:03d}", "structured", split, text, f"generator: {form}")
            for number, (form, text) in enumerate(rows)
        ]
    return prompts


def write_suites() -> None:
    """Writes the four suites. The showcase is chosen by hand and is not changed."""
    tokenizer, documents = load_tokenizer(), read_documents("held_out")
    for suite in SUITES:
        prompts = generate_structured() if suite == "structured" else cut_suite(suite, documents, tokenizer)
        with replacing_file(PROMPTS / f"{suite}.jsonl") as file:
            for prompt in prompts:
                row = {key: value for key, value in asdict(prompt).items() if value not in ("", ())}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
