"""The model cards: every figure comes from the report and from the facts of the training."""

from __future__ import annotations

import json

from training.continuations import chosen_continuations
from training.draft import DEFAULT, RECIPES
from training.files import replacing_file
from training.places import PAIR, PAIR_NAME
from training.report import share

HEAD = """---
license: apache-2.0
language: [en]
tags: [speculative-decoding, {role}]
library_name: transformers
---
"""
TAIL_LINES = 8
"""Lines of a prompt that the card shows."""


def write_cards(report: dict) -> None:
    """Writes a README.md beside the target's and each draft's weights."""
    facts = json.loads((PAIR / "training.json").read_text())
    write_card("target", target_card(report, facts, chosen_continuations()))
    for name in report["drafts"]:
        write_card(f"drafts/{name}", draft_card(name, report, facts))


def write_card(place: str, text: str) -> None:
    """Replaces the card in a folder of the pair."""
    with replacing_file(PAIR / place / "README.md") as file:
        file.write(text)


def size_line(size: dict, mark: str) -> str:
    """Parameters, layers and width, and the fingerprint that the figures below belong to."""
    return (
        f"Llama architecture, {size['parameters']:,} parameters, {size['layers']} layers of "
        f"width {size['hidden']}, "
        f"vocabulary 8,192 (byte-level BPE), context 1,024, bf16. Weights fingerprint `{mark}`."
    )


def data_lines(facts: dict) -> str:
    """What the corpus is, and under which licences."""
    corpus = facts["corpus"]
    return (
        f"Source code, tests, docstrings and README files of {corpus['packages']} Python "
        "packages (the standard "
        "library among them) under permissive licences (MIT, BSD, Apache, PSF and the like): "
        f"{corpus['train']['characters'] / 1e6:.0f} million characters. "
        f"{corpus['held_out']['documents']} files "
        "were held out by a hash of their names before training. Packages, versions and licences: "
        "`corpus.json` beside this pair. The weights are under the Apache License 2.0."
    )


def target_card(report: dict, facts: dict, chosen: list[dict[str, str]]) -> str:
    """The target's card."""
    held, texts, parts = report["held_out"], report["texts"], facts["target"]
    tokens = sum(part.get("tokens", 0) for part in parts.values())
    minutes = sum(part.get("minutes", 0) for part in parts.values())
    rows = [f"| {name} | {row['loop_share']:.0%} | {row['distinct_4']:.2f} |" for name, row in texts.items()]
    return "\n".join(
        [
            HEAD.format(role="target"),
            f"# {PAIR_NAME}: target\n",
            "The target of a pair for showing speculative decoding on a CPU. It writes "
            "plausible Python and knows little.\n",
            size_line(report["sizes"]["target"], report["fingerprints"]["target"]),
            "\n## Data\n",
            data_lines(facts),
            "\n## Training\n",
            f"From random weights, {minutes:.0f} minutes and {tokens / 1e6:.1f} million tokens "
            "in all on a CPU of two cores "
            "that other work shared: first 8 layers at context 256, then deepened to 16 by "
            "silent copies of its layers "
            "(block expansion, Wu et al. 2024), the last part at context 1,024. Muon for "
            "matrices, AdamW for the rest, "
            "bf16 autocast."
            + unloop_line(parts.get("unlooped", {})),
            "\n## Held-out loss\n",
            f"Bits per byte of {held['bytes']:,} bytes of held-out files: **{held['target']:.2f}** "
            f"({held['nats_per_token']:.2f} nats per token). On the same text: 5-gram over the "
            "tokens that the target saw "
            f"{held['5-gram']:.2f}, xz -9 {held['xz']:.2f}, gzip -9 {held['gzip']:.2f}.",
            "\n## What it writes\n",
            f"Greedy text of up to 128 tokens after {report['prompts_per_suite']} test prompts "
            "of each suite:\n",
            "| suite | inside loops | distinct-4 |",
            "| --- | --- | --- |",
            *rows,
            "",
            "A loop is a stretch that repeats with a period of at most 64 tokens, three times or more.",
            *[continuation_lines(row) for row in chosen],
            "\n## Not good for\n",
            "Writing code that anyone runs; facts; any language but English and Python; long "
            "texts (it loops). It was made "
            "to be guessed, fast, beside its drafts.",
            "",
        ]
    )


def unloop_line(run: dict) -> str:
    """What the part against loops was; nothing where there was none."""
    if not run:
        return ""
    return (
        f" Of this, {run['minutes']:.0f} minutes taught it to leave loops: sequence-level unlikelihood (Welleck et al. "
        f"2019) on greedy texts of its own, beside {run['tokens'] / 1e6:.1f} million tokens of the corpus."
    )


def continuation_lines(row: dict[str, str]) -> str:
    """One chosen continuation as an indented block, with the reader's remark."""
    prompt = row["prompt"].splitlines()
    shown = ["..."] * (len(prompt) > TAIL_LINES) + prompt[-TAIL_LINES:]
    block = "\n".join(shown) + "\u2588" + row["text"]
    indented = "\n".join("    " + line for line in block.splitlines())
    return f"\n### {row['id']}\n\n{row['remark']} (The block marks where the target goes on.)\n\n{indented}"


def draft_card(name: str, report: dict, facts: dict) -> str:
    """A draft's card."""
    rows, costs, run = report["drafts"][name], report["costs"], facts["drafts"][name]
    start = (
        "from the target's layers " + ", ".join(map(str, RECIPES[name].layers))
        if RECIPES[name].layers
        else "from random layers"
    )
    before = facts.get("drafts_before", {}).get(name)
    table = [
        f"| {suite} | {share(row['match'])} | {share(row['match_outside'])} | {share(row['match_inside'])} "
        f"| {share(row['overlap'])} | {share(row['overlap_outside'])} | {share(row['overlap_inside'])} "
        f"| {row['oracle_sl']:.1f} ± {row['oracle_sl_sd']:.1f} |"
        for suite, row in rows.items()
    ]
    lines = [
        HEAD.format(role="draft"),
        f"# {PAIR_NAME}: draft {name}\n",
        f"A draft for this pair's target: {RECIPES[name].note}.\n",
        size_line(report["sizes"][name], report["fingerprints"]["drafts"][name]),
        f"It was measured with the target `{report['fingerprints']['target']}`.",
        "\n## Training\n",
        f"It started {start} and from its embeddings, and was distilled by forward KL over the "
        "target's 32 most probable "
        f"tokens, {run.get('minutes')} minutes on a shared CPU ({run.get('tokens', 0) / 1e6:.1f} "
        "million tokens, repeats "
        "included), on text that the target wrote, three parts greedily and one at temperature 0.7, "
        "the prompts included, and on windows of the corpus."
        + (inherited_line(before) if before else ""),
        "",
        data_lines(facts),
        "\n## How well it guesses\n",
        "Along the target's greedy text on test prompts; 1-TV is the acceptance probability of "
        "speculative sampling:\n",
        "| suite | match | outside loops | inside | 1-TV | outside loops | inside | oracle SL |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *table,
        "",
        f"Measured cost ratio **c = {costs['c'][name]:.3f}** ({costs['draft_dtype'][name]} beside a "
        f"{costs['target_dtype']} target, {costs['threads']} threads, {costs['machine']}).",
    ]
    if name == DEFAULT and all(facts["losses"].get(loss) for loss in ("kl", "tv", "ce")):
        lines += ["\n## Losses compared\n", loss_lines(facts["losses"])]
    return "\n".join(
        [*lines, "\n## Not good for\n", "Anything but guessing what this target writes next.", ""]
    )


def inherited_line(before: dict) -> str:
    """What a draft had learned from the target as it was before its own last training."""
    return (
        f" Before that it had learned for {before['minutes']} minutes ({before['tokens'] / 1e6:.1f} million tokens) "
        "from the target as it was before it was taught to leave loops."
    )


def loss_lines(losses: dict) -> str:
    """The match rates of the short runs with each distillation loss."""
    names = {"kl": "forward KL", "tv": "total variation", "ce": "cross-entropy"}
    rates = ", ".join(
        f"{names[key]} {run['kept_back']:.3f} ({run['steps']} steps)" for key, run in losses.items()
    )
    return f"Match rate on kept-back text after {losses['kl']['minutes']} minutes with each: {rates}."
