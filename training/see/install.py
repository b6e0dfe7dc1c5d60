"""Ships the reader: weights in bfloat16, the figures of a report, and a card made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from decoding.analysis.seen import DECIDES
from decoding.engines.picture_encoder import TOKENS, WEIGHTS, has_weights, load_reader
from decoding.errors import UserError
from decoding.files import digest_of_files
from decoding.pictures.scenes import COLORS, MOST_THINGS, SHAPES, SIDE, emoji_names
from decoding.records.text import markdown_table
from training.align.measure import SL
from training.align.teacher import ChatModel
from training.files import replacing_file, write_json

from .chat import Chat
from .match import TITLES
from .questions import SAMPLES
from .reading import newest_reader
from .report import measure
from .scenes import RARE

FACTS, FIGURES, MATCHES = "training.json", "report.json", "drafts.json"


def install(states: Path, shipped: Path, model: ChatModel) -> str:
    """Copies the newest weights; a sentence about them. Raises UserError if a step is missing."""
    width = Chat.width_of(model)
    reader, steps = newest_reader(states, shipped, width)
    shipped.mkdir(parents=True, exist_ok=True)
    for name, part in zip(WEIGHTS, (reader.encoder, reader.projector), strict=True):
        tensors = {key: value.to(torch.bfloat16).contiguous() for key, value in part.state_dict().items()}
        with replacing_file(shipped / name, "wb") as file:
            file.write(save(tensors))
    parts = {name: sum(p.numel() for p in part.parameters()) for name, part in reader.named_children()}
    trained = {name: {"steps": step, "minutes": round(seconds / 60)} for name, (step, seconds) in steps.items()}
    write_json(shipped / FACTS, {"chat_model": model.mark, "width": width, "parameters": parts, "trained": trained})
    return f"The picture reader: {sum((shipped / name).stat().st_size for name in WEIGHTS) / 1e6:.1f} MB."


def write_report(shipped: Path, model: ChatModel, scenes: int, tell: Callable[[str], None]) -> None:
    """Measures the shipped weights and writes report.json and README.md. Raises UserError if there are none."""
    if not has_weights(shipped):
        raise UserError("There are no shipped weights. Run `python -m training see install` first.")
    chat = Chat(model)
    figures = {"weights": digest_of_files([shipped / name for name in WEIGHTS])} | measure(
        chat, load_reader(shipped, chat.width), scenes, tell
    )
    write_json(shipped / FIGURES, figures)
    _write_card(shipped)


def write_matches(shipped: Path, found: dict[str, Any]) -> None:
    """Writes what was measured of the drafts, and the card with it."""
    write_json(shipped / MATCHES, found)
    _write_card(shipped)


def _write_card(shipped: Path) -> None:
    figures, facts = (json.loads((shipped / name).read_text()) for name in (FIGURES, FACTS))
    found = json.loads((shipped / MATCHES).read_text()) if (shipped / MATCHES).is_file() else None
    with replacing_file(shipped / "README.md") as file:
        file.write(card(figures, facts) + (drafts_section(found) if found else ""))


AIMS = {"right kinds": 0.85, "how many": 0.8, "beside": 0.8}
"""What the reader was made for: shares of right answers about held-out scenes of up to three things."""

ROWS = {"encoder": "(encoder: all things, kinds and colours)", "right kinds": "what: the right kinds"} | SAMPLES

CARD = """---
license: apache-2.0
language: [en]
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# SmolLM2-135M-Instruct reads scenes

An image encoder and a projector that put {tokens} picture tokens before a question, as LLaVA does (Liu et al. 2023),
for [SmolLM2-135M-Instruct](https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct), whose weights stay as they are.
They read *scenes* that this project draws: one to {most} things on a plain or patterned ground, {side} x {side} pixels.
A thing is one of {emoji} emoji (Noto Color Emoji, SIL Open Font License), or a shape ({shapes}) or a digit in one of
{colors} colours.

## How good

{table}

Shares of right greedy answers, the chat model in bfloat16; {scenes} held-out scenes in each column
(`python -m training see report`). A tenth of all scenes, chosen by a hash of their layout, is held out. An answer
counts as right if it is the expected sentence to the letter; for the right kinds, if it names the kinds of the scene
and no other.
{verdict}

## How it was made

Parameters: {parameters}. The encoder finds things in a grid of cells and names them. What it finds fills the picture
tokens from left to right, as mixtures of vectors, weighted by how sure it is: which thing, what is to its left, what is
to its right, in the order of the answers, so that the chat model can copy. They start as the chat model's own words and
are trained through the frozen chat model, with the cross-entropy of answers to questions about random scenes.
Trained on two shared CPU cores: {trained} (`python -m training see`).
Without states in `build/see`, `python -m training see reader` goes on from these weights.

## What it cannot do

- **Photographs, and any other picture.** The encoder knows its own sprites only, at the sizes that scenes have.
- Questions other than those of the table: the chat model answers, often from the text alone.
- *Left of* and *right of* mean the next thing on that side, however high or low; there is no above, below or between.
- The colours of emoji, the ground, sizes, and what things do.
- More than {most} things, and things that overlap or are turned.
- {rare_count} emoji stood alone in all training scenes (last column): {rare}.
"""


def card(figures: dict[str, Any], facts: dict[str, Any]) -> str:
    """The model card; every figure comes from report.json and training.json."""
    return CARD.format(
        tokens=TOKENS,
        most=MOST_THINGS,
        side=SIDE,
        emoji=len(emoji_names()),
        shapes=", ".join(SHAPES),
        colors=len(COLORS),
        table=_table(figures["groups"]),
        scenes=figures["scenes"],
        verdict=_verdict(next(iter(figures["groups"].values()))),
        parameters=", ".join(f"{name} {count / 1e6:.1f} M" for name, count in facts["parameters"].items()),
        trained=", ".join(
            f"{name} {row['steps']:,} steps in {row['minutes']} minutes" for name, row in facts["trained"].items()
        ),
        rare_count=len(RARE),
        rare=", ".join(RARE),
    )


DRAFTS = """
## Drafts that cannot see

{rows}

Shares of the target's own tokens that a draft guesses, over {prompts} questions about held-out scenes (suite
`pictures`, `python -m training see match`): {tokens:,} tokens, of which the picture decides {by_picture} (at least
{decides:g} times as probable with it as with a grey one). Tokens per pass: with {sl} guesses an iteration.
"""


def drafts_section(found: dict[str, Any]) -> str:
    """The table of On Speculative Decoding for Multimodal Large Language Models, of this pair."""
    head = ("draft", "words that the picture decides", "others", "all", f"tokens per pass, SL {SL}")
    rows = [
        [TITLES[name], *(f"{row[key]:.0%}" for key in ("picture", "others", "all")), f"{row['tokens_per_pass']:.2f}"]
        for name, row in found["drafts"].items()
    ]
    counts = {name: found[name] for name in ("prompts", "tokens", "by_picture")}
    return DRAFTS.format(rows=markdown_table(head, rows), decides=DECIDES, sl=SL, **counts)


def _table(groups: dict[str, dict[str, float]]) -> str:
    rows = (
        [title, *(f"{shares[name]:.0%}" if name in shares else "" for shares in groups.values())]
        for name, title in ROWS.items()
    )
    return markdown_table(["question", *groups], rows)


def _verdict(shares: dict[str, float]) -> str:
    """Which aims are reached in the first group, and which are missed."""
    said: dict[bool, list[str]] = {True: [], False: []}
    for name, aim in AIMS.items():
        said[shares[name] >= aim].append(f"{ROWS[name]} {shares[name]:.0%} (aim {aim:.0%})")
    parts = (("Aims reached", said[True]), ("Aims missed", said[False]))
    return " ".join(f"{title}: {', '.join(rows)}." for title, rows in parts if rows)
