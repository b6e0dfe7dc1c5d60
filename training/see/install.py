"""Ships the reader: weights in bfloat16, the figures of a report, and a card made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from decoding.engines.picture_encoder import TOKENS, WEIGHTS, load_reader
from decoding.errors import UserError
from decoding.files import sha256_of_file
from decoding.pictures.scenes import COLORS, DIGITS, MOST_THINGS, SHAPES, SIDE, emoji_names
from training.align.teacher import ChatModel
from training.files import replacing_file

from .questions import SAMPLES
from .reading import Chat, newest_reader
from .report import measure
from .scenes import RARE

FACTS, FIGURES = "training.json", "report.json"


def install(states: Path, shipped: Path, model: ChatModel) -> str:
    """Copies the newest weights; a sentence about them. Raises UserError if a step is missing."""
    reader, steps = newest_reader(states, shipped, Chat.width_of(model))
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in reader.state_dict().items()}
    shipped.mkdir(parents=True, exist_ok=True)
    with replacing_file(shipped / WEIGHTS, "wb") as file:
        file.write(save(tensors))
    parts = {name: sum(p.numel() for p in part.parameters()) for name, part in reader.named_children()}
    trained = {
        Path(name).stem: {"steps": step, "minutes": round(seconds / 60)} for name, (step, seconds) in steps.items()
    }
    _write_json(shipped / FACTS, {"chat_model": model.mark, "parameters": parts, "trained": trained})
    return f"{WEIGHTS}: {(shipped / WEIGHTS).stat().st_size / 1e6:.1f} MB."


def write_report(shipped: Path, model: ChatModel, scenes: int, tell: Callable[[str], None]) -> None:
    """Measures the shipped weights and writes report.json and README.md. Raises UserError if there are none."""
    weights = shipped / WEIGHTS
    if not weights.is_file():
        raise UserError("There are no shipped weights. Run `python -m training see install` first.")
    chat = Chat(model)
    figures = {"weights": sha256_of_file(weights)} | measure(chat, load_reader(weights, chat.width), scenes, tell)
    _write_json(shipped / FIGURES, figures)
    with replacing_file(shipped / "README.md") as file:
        file.write(card(figures, json.loads((shipped / FACTS).read_text())))


def _write_json(path: Path, content: object) -> None:
    with replacing_file(path) as file:
        json.dump(content, file, indent=1)
        file.write("\n")


AIMS = {"right kinds": 0.85, "how many": 0.8, "beside": 0.8}
"""What the model was made for: shares of right answers about held-out scenes of up to three things."""

_HEAD = f"""---
license: apache-2.0
language: [en]
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# SmolLM2-135M-Instruct reads scenes

An image encoder and a projector that put {TOKENS} picture tokens before a question, as LLaVA does (Liu et al. 2023), for
[SmolLM2-135M-Instruct](https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct), whose own weights are unchanged.
They read *scenes* that this project draws: one to {MOST_THINGS} things on a plain or patterned ground, {SIDE} x {SIDE}
pixels. A thing is one of {len(emoji_names())} emoji (Noto Color Emoji, SIL Open Font License), or a shape
({", ".join(SHAPES)}) or a digit in one of {len(COLORS)} colours.
"""


def card(figures: dict[str, Any], facts: dict[str, Any]) -> str:
    """The model card; every figure comes from report.json and training.json."""
    groups = figures["groups"]
    columns = {"encoder": "encoder: all things, kinds and colours"} | {"right kinds": "what: the right kinds"} | SAMPLES
    rows = [
        f"| {title} | " + " | ".join(_share(groups[group].get(name)) for group in groups) + " |"
        for name, title in columns.items()
    ]
    first = groups[next(iter(groups))]
    missed = [f"{name} {_share(first[name])} (aim {aim:.0%})" for name, aim in AIMS.items() if first[name] < aim]
    verdict = (
        f"Aims missed: {', '.join(missed)}."
        if missed
        else "Every aim is reached: " + ", ".join(f"{name} at least {aim:.0%}" for name, aim in AIMS.items()) + "."
    )
    trained = ", ".join(
        f"{name} {row['steps']:,} steps in {row['minutes']} minutes" for name, row in facts["trained"].items()
    )
    parts = ", ".join(f"{name} {count / 1e6:.1f} M" for name, count in facts["parameters"].items())
    return "\n".join(
        [
            _HEAD,
            "## How good\n",
            "| question | " + " | ".join(groups) + " |",
            "| --- |" + " --- |" * len(groups),
            *rows,
            f"\nShares of right greedy answers, the chat model in bfloat16; {figures['scenes']} held-out scenes in each column",
            "(`python -m training see report`). A hash of its layout holds a tenth of all scenes out. An answer counts as right",
            "if it is the expected sentence to the letter; for the right kinds, if it names the kinds of the scene and no other.",
            f"{verdict}\n",
            "## How it was made\n",
            f"Parameters: {parts}. The encoder finds things in a grid of cells and names them; those found fill the",
            "picture tokens from left to right, as mixtures of vectors that start as the chat model's own words for a thing and",
            "were then trained through the frozen chat model, with the cross-entropy of answers to questions about random scenes.",
            f"Trained on two shared CPU cores: {trained} (`python -m training see`; `reader` goes on from these weights).\n",
            "## What it cannot do\n",
            "- **Photographs and any other picture.** The encoder knows its own sprites only, at the sizes that scenes have.",
            "- Other questions than those of the table, in other words: the chat model answers, often from the text alone.",
            "- *Left of* and *right of* mean the next thing in that direction, however high or low it lies; there is no above, below or between.",
            "- Colours of emoji, the ground, sizes, and what things do.",
            f"- More than {MOST_THINGS} things, overlapping or turned things.",
            f"- {len(RARE)} emoji stood alone in all training scenes ({', '.join(RARE)}): the last column.",
            "",
        ]
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
