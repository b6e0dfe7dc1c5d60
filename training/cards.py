"""The model cards. Every figure comes from the report or the training logs."""

from __future__ import annotations

import json
import math

from training.continuations import chosen_continuations
from training.draft import DEFAULT, RECIPES
from training.files import replacing_file
from training.measure import NEW_TOKENS
from training.places import PAIR, PAIR_NAME
from training.report import share

HEAD = """---
license: apache-2.0
language: [en]
tags: [speculative-decoding, {role}]
library_name: transformers
---
"""
LOSS_NAMES = {
    "kl": "forward KL",
    "sharp": "forward KL at temperatures 1 and 1/4",
    "tv": "total variation",
    "ce": "cross-entropy",
}
TAIL_LINES = 8
"""Lines of a prompt that the card shows."""
FARTHEST_APART = 2.57
"""Distance in standard errors between the highest and lowest of four equal means that chance exceeds once in twenty
(Tukey's studentised range, 3.63, over the square root of two).
"""


def write_cards(report: dict) -> None:
    """Writes a README.md for the target, for each draft, and for the pair."""
    facts = json.loads((PAIR / "training.json").read_text())
    write_card("target", target_card(report, facts, chosen_continuations()))
    for name in report["drafts"]:
        write_card(f"drafts/{name}", draft_card(name, report, facts))
    write_card(".", pair_card(report))


def write_card(place: str, text: str) -> None:
    """Replaces the card in a folder of the pair."""
    with replacing_file(PAIR / place / "README.md") as file:
        file.write(text)


def pair_card(report: dict) -> str:
    """The pair's README: the folder's content, and a table with one row per model."""
    head = ["model", "parameters", "layers", "c", "match", "outside loops", "oracle SL", "held-out bits per byte"]
    sizes, held = report["sizes"], report["held_out"]
    rows = [table_row("[target](target)", sizes["target"], *["-"] * 4, f"{held['target']:.2f}")]
    for name, figures in report["drafts"].items():
        row = figures["all"]
        sl = f"{row['oracle_sl']:.1f} ± {row['oracle_sl_sd']:.1f}"
        figures = f"{report['costs']['c'][name]:.3f}", share(row["match"]), share(row["match_outside"]), sl
        rows.append(table_row(f"[{name}](drafts/{name})", sizes[name], *figures, f"{held['drafts'][name]:.2f}"))
    return "\n".join(
        [
            f"# {PAIR_NAME}\n",
            "A target and its draft for showing speculative decoding on a CPU. Each folder has a model card.\n",
            "| " + " | ".join(head) + " |",
            "| --- " * len(head) + "|",
            *rows,
            "",
            f"Along the target's greedy text after {report['prompts_per_suite']} test prompts of each suite. "
            f"c: a draft's step over the target's, median of {report['costs']['measurements']} measurements. "
            "`report.json` holds all figures, `training.json` what the training logs record, `corpus.json` the "
            "packages, versions and licences of the corpus, `pair.json` what is loaded.",
            "",
        ]
    )


def table_row(name: str, size: dict, *cells: str) -> str:
    """One row of the pair's table."""
    return f"| {name} | {size['parameters']:,} | {size['layers']} | {' | '.join(cells)} |"


def size_line(size: dict, mark: str) -> str:
    """Parameters, layers, width, and the fingerprint of the weights."""
    return (
        f"Llama architecture, {size['parameters']:,} parameters, {size['layers']} layers of "
        f"width {size['hidden']}, "
        f"vocabulary 8,192 (byte-level BPE), context 1,024, bf16. Weights fingerprint `{mark}`."
    )


def data_lines(facts: dict) -> str:
    """The corpus and its licences."""
    corpus = facts["corpus"]
    return (
        f"Source code, tests, docstrings and README files of {corpus['packages']} Python "
        "packages (the standard "
        "library among them) under permissive licences (MIT, BSD, Apache, PSF and the like): "
        f"{corpus['train']['characters'] / 1e6:.0f} million characters. "
        f"{corpus['held_out']['documents']} files "
        "were held out by a hash of their names before training. Packages, versions and licences: "
        "`corpus.json` in this pair's folder.  The weights are under the Apache License 2.0."
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
            "plausible but mostly meaningless Python.\n",
            size_line(report["sizes"]["target"], report["fingerprints"]["target"]),
            "\n## Data\n",
            data_lines(facts),
            "\n## Training\n",
            f"From random weights, {minutes:.0f} minutes and {tokens / 1e6:.1f} million tokens "
            "in total on a shared CPU with two cores: first 8 layers at context 256, then deepened to 16 by "
            "copies of its layers that initially add nothing "
            "(block expansion, Wu et al. 2024), the last part at context 1,024. Muon for "
            "matrices, AdamW for the rest, "
            "bf16 autocast." + unloop_line(parts.get("unlooped", {})),
            "\n## Held-out loss\n",
            f"Bits per byte of {held['bytes']:,} bytes of held-out files: **{held['target']:.2f}** "
            f"({held['nats_per_token']:.2f} nats per token). On the same text: a 5-gram model of the target's "
            f"training tokens {held['5-gram']:.2f}, xz -9 {held['xz']:.2f}, gzip -9 {held['gzip']:.2f}.",
            "\n## What it writes\n",
            f"Greedy text of up to 128 tokens after {report['prompts_per_suite']} test prompts of each suite:\n",
            "| suite | inside loops | distinct-4 |",
            "| --- | --- | --- |",
            *rows,
            "",
            "A loop is a part of the text that repeats with a period of at most 64 tokens, three times or more.",
            *[continuation_lines(row) for row in chosen],
            "\n## Not good for\n",
            "Code that is meant to run; facts; any language but English and Python; long "
            "texts (it loops). It was made to show speculative decoding with its drafts.",
            "",
        ]
    )


def unloop_line(run: dict) -> str:
    """The training against loops; empty if there was none."""
    if not run:
        return ""
    return (
        f" In {run['minutes']:.0f} of these minutes it was trained to leave loops: sequence-level unlikelihood "
        "(Welleck et al. 2019) on its own greedy texts, together with "
        f"{run['tokens'] / 1e6:.1f} million tokens of the corpus."
    )


def continuation_lines(row: dict[str, str]) -> str:
    """One chosen continuation as an indented block, with its remark."""
    prompt = row["prompt"].splitlines()
    shown = ["..."] * (len(prompt) > TAIL_LINES) + prompt[-TAIL_LINES:]
    block = "\n".join(shown) + "\u2588" + row["text"]
    indented = "\n".join("    " + line for line in block.splitlines())
    return f"\n### {row['id']}\n\n{row['remark']} (The block marks where the target's text begins.)\n\n{indented}"


def draft_card(name: str, report: dict, facts: dict) -> str:
    """A draft's card."""
    rows, costs, run = report["drafts"][name], report["costs"], facts["drafts"][name]
    start = (
        "from the target's layers " + ", ".join(map(str, RECIPES[name].layers))
        if RECIPES[name].layers
        else "from random layers"
    )
    earlier = facts.get("drafts_earlier", {}).get(name, [])
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
        f"It started {start}, with the target's embeddings, and was distilled by "
        f"{LOSS_NAMES.get(run.get('loss'), 'a loss that no log records')} over the target's 32 most probable "
        f"tokens, for {run.get('minutes')} minutes on a shared CPU ({run.get('steps', 0):,} steps, "
        f"{run.get('tokens', 0) / 1e6:.1f} million tokens, with repetitions), on text that "
        "the target wrote, three quarters of it greedily and one quarter at temperature 0.7, "
        "the prompts included, and on windows of the corpus." + earlier_line(earlier, report["fingerprints"]["target"]),
        "",
        data_lines(facts),
        "\n## Held-out loss\n",
        f"{report['held_out']['drafts'][name]:.2f} bits per byte of held-out files (the target: "
        f"{report['held_out']['target']:.2f}). It was trained mostly on the target's texts: on held-out "
        f"windows of them, its first choice is the target's at {share(run.get('kept_back'))} of the positions.",
        "\n## How well it guesses\n",
        f"Along the target's greedy text of up to {NEW_TOKENS} tokens after {report['prompts_per_suite']} test "
        f"prompts of each suite ({rows['all']['tokens']:,} tokens); 1-TV is the acceptance probability of "
        "speculative sampling:\n",
        "| suite | match | outside loops | inside | 1-TV | outside loops | inside | oracle SL |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *table,
        "",
        suite_lines({suite: row for suite, row in rows.items() if suite != "all"}),
        "",
        f"Measured cost ratio **c = {costs['c'][name]:.3f}**, median of {costs['measurements']} measurements, "
        f"quartiles {costs['c_spread'][name][0]:.3f} and {costs['c_spread'][name][1]:.3f} "
        f"({costs['draft_dtype'][name]} draft, "
        f"{costs['target_dtype']} target, {costs['threads']} threads, {costs['machine']}).",
    ]
    if name == DEFAULT and all(facts["losses"].get(loss) for loss in ("kl", "tv", "ce")):
        lines += ["\n## Losses compared\n", loss_lines(facts["losses"])]
        if facts.get("losses_target", report["fingerprints"]["target"]) != report["fingerprints"]["target"]:
            lines[-1] += f" They were trained on texts of an earlier version of the target, `{facts['losses_target']}`."
    return "\n".join([*lines, "\n## Not good for\n", "Anything but guessing what this target writes next.", ""])


def earlier_line(stages: list[dict], target: str) -> str:
    """A draft's earlier training: with another loss, or from the target before it was trained to leave loops."""
    earlier = [
        f"{stage['minutes']} minutes ({stage['tokens'] / 1e6:.1f} million tokens) by {LOSS_NAMES[stage['loss']]} from "
        + ("this target" if stage["target"] == target else "the target before its training to leave loops")
        for stage in stages
    ]
    return f" Before that it was trained for {', then for '.join(earlier)}." if earlier else ""


def suite_lines(rows: dict[str, dict]) -> str:
    """How the suites differ outside loops and in their share of loops, and whether by more than chance."""
    known = {suite: row for suite, row in rows.items() if row["match_outside_error"] is not None}
    if len(known) < 2:
        return "There is too little text outside loops to compare the suites."
    low, high = (pick(known, key=lambda suite: known[suite]["match_outside"]) for pick in (min, max))
    gap = known[high]["match_outside"] - known[low]["match_outside"]
    error = math.hypot(known[high]["match_outside_error"], known[low]["match_outside_error"])
    verdict = "more than chance explains" if gap > FARTHEST_APART * error else "which chance may explain"
    few, many = (pick(rows, key=lambda suite: rows[suite]["loop_share"]) for pick in (min, max))
    return (
        f"Outside loops the match rate ranges from {share(known[low]['match_outside'])} ({low}) to "
        f"{share(known[high]['match_outside'])} ({high}): {gap:.3f} with a standard error of {error:.3f}, {verdict}. "
        f"Between {rows[few]['loop_share']:.0%} ({few}) and {rows[many]['loop_share']:.0%} ({many}) of the text is "
        f"inside loops; there the match rate is {share(rows[few]['match_inside'])} and "
        f"{share(rows[many]['match_inside'])}, and the oracle's mean SL over the whole text is "
        f"{rows[few]['oracle_sl']:.1f} and {rows[many]['oracle_sl']:.1f}."
    )


def loss_lines(losses: dict) -> str:
    """The match rate of a short run with each distillation loss."""
    rates = ", ".join(
        f"{LOSS_NAMES[key]} {run['kept_back']:.3f} ({run['steps']} steps)" for key, run in losses.items() if run
    )
    return f"Match rate on held-out text after {losses['kl']['minutes']} minutes of training with each: {rates}."
