"""The report on the shipped pair: figures per draft and suite, printed, saved as JSON and written into the cards."""

from __future__ import annotations

import json
import os
import platform
import sys
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table
from transformers import LlamaForCausalLM

from decoding.comparison.costs import measure_costs
from decoding.engines.pair import load_pair
from decoding.errors import UserError
from decoding.records.fingerprint import fingerprint
from decoding.records.pairs import PairDescription, find_pair
from decoding.records.suites import load_suite
from training.architecture import parameter_count
from training.install import write_json
from training.measure import by_suite, go_along, held_out_figures, load_bf16, text_figures, write_texts
from training.places import CORPUS, PAIR, PAIR_NAME

COST_ROUNDS = 9
"""Measurements of the cost curves, each on another prompt with many passes: a single one varies by a tenth."""


def fingerprints(pair: PairDescription) -> dict:
    """Fingerprints of target and drafts; they show whether a report is stale."""
    return {
        "target": fingerprint(pair.target),
        "drafts": {name: fingerprint(place) for name, place in pair.drafts.items()},
    }


def read_report() -> dict:
    """The last report, or None."""
    path = PAIR / "report.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def is_stale() -> bool:
    """Whether the report belongs to other weights than the shipped ones."""
    return read_report().get("fingerprints") != fingerprints(find_pair(PAIR_NAME))


def measure_pair_costs() -> dict:
    """Milliseconds of a target pass, v(6), v(17), o, and c of every draft, with the default engine and dtypes.

    Medians over COST_ROUNDS measurements; in each, target and drafts take turns as in a lane. ``c_spread``
    holds the quartiles of c.
    """
    pair = load_pair(PAIR_NAME)
    rows = [
        measure_costs(pair, pair.draft_names, pair.encode_prompt(prompt.prompt), context=200)
        for prompt in load_suite("all", "validation", COST_ROUNDS)
    ]
    c = {name: [row.c[name] for row in rows] for name in pair.draft_names}
    infos = {name: pair.draft(name).info for name in pair.draft_names}
    return {
        "measurements": len(rows),
        "target_ms": 1e3 * median(row.target_s for row in rows),
        "v6": median(row.check(6) for row in rows),
        "v17": median(row.check(17) for row in rows),
        "o": median(row.o for row in rows),
        "c": {name: median(values) for name, values in c.items()},
        "c_spread": {name: quartiles(values) for name, values in c.items()},
        "target_dtype": pair.target.info.dtype,
        "draft_dtype": {name: info.dtype for name, info in infos.items()},
        "threads": pair.target.info.threads,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def quartiles(values: list[float]) -> tuple[float, float]:
    """The first and the third quartile."""
    first, _, third = quantiles(values, n=4, method="inclusive")
    return first, third


def held_out(
    pair: PairDescription, target: LlamaForCausalLM, drafts: dict[str, LlamaForCausalLM], before: dict
) -> dict:
    """Held-out bits per byte; without the corpus, those of a report on the same weights."""
    if (CORPUS / "held_out.jsonl").is_file():
        facts = json.loads((PAIR / "training.json").read_text())
        seen = sum(part.get("tokens", 0) for part in facts["target"].values())
        return held_out_figures(target, drafts, PAIR / "target", seen)
    if before.get("fingerprints") == fingerprints(pair):
        return before["held_out"]
    raise UserError("The held-out text is missing. Run `python -m training corpus` and `tokenizer` first.")


def make_report(limit: int) -> dict:
    """Measures the shipped pair on the first ``limit`` test prompts of each suite; writes ``report.json``."""
    pair, before = find_pair(PAIR_NAME), read_report()
    target = load_bf16(PAIR / "target")
    drafts = {name: load_bf16(PAIR / "drafts" / name) for name in pair.drafts}
    texts = write_texts(target, PAIR / "target", limit)
    alongs = go_along(target, drafts, texts)
    sizes = {
        name: {
            "parameters": parameter_count(model),
            "layers": model.config.num_hidden_layers,
            "hidden": model.config.hidden_size,
        }
        for name, model in {"target": target, **drafts}.items()
    }
    report = {
        "fingerprints": fingerprints(pair),
        "prompts_per_suite": limit,
        "sizes": sizes,
        "texts": text_figures(texts),
        "held_out": held_out(pair, target, drafts, before),
        "drafts": {name: by_suite(rows) for name, rows in alongs.items()},
        "costs": measure_pair_costs(),
    }
    write_json(PAIR / "report.json", report)
    return report


def show(report: dict, console: Console | None = None) -> None:
    """Prints the report as tables."""
    console = console or (Console() if sys.stdout.isatty() else Console(width=140))
    held, texts = report["held_out"], report["texts"]["all"]
    console.print(
        f"Held-out text, bits per byte: target {held['target']:.2f}, 5-gram {held['5-gram']:.2f}, "
        f"xz -9 {held['xz']:.2f}, gzip -9 {held['gzip']:.2f} ({held['nats_per_token']:.2f} nats per token).\n"
        f"Greedy text: {texts['loop_share']:.0%} of it in loops, distinct-4 {texts['distinct_4']:.2f}."
    )
    console.print(draft_table(report))
    console.print(suite_table(report))


def draft_table(report: dict) -> Table:
    """One row per draft: size, cost, match rate, 1-TV, oracle SL."""
    table = Table(
        "draft",
        "parameters",
        "layers",
        "c",
        "match",
        "outside loops",
        "inside",
        "1-TV",
        "outside",
        "oracle SL",
    )
    for name, rows in report["drafts"].items():
        row, size = rows["all"], report["sizes"][name]
        table.add_row(
            name,
            f"{size['parameters']:,}",
            str(size["layers"]),
            cost(report["costs"], name),
            *(share(row[key]) for key in ("match", "match_outside", "match_inside", "overlap", "overlap_outside")),
            f"{row['oracle_sl']:.1f} +- {row['oracle_sl_sd']:.1f}",
        )
    return table


def cost(costs: dict, name: str) -> str:
    """A draft's c with its quartiles."""
    return f"{costs['c'][name]:.3f} ({costs['c_spread'][name][0]:.3f} to {costs['c_spread'][name][1]:.3f})"


def suite_table(report: dict) -> Table:
    """Match rate outside loops: a row per draft, a column per suite."""
    suites = [suite for suite in report["texts"] if suite != "all"]
    table = Table("match outside loops, standard error", *suites)
    for name, rows in report["drafts"].items():
        cells = ((rows[suite]["match_outside"], rows[suite]["match_outside_error"]) for suite in suites)
        table.add_row(name, *(f"{share(rate)} ± {share(error)}" for rate, error in cells))
    return table


def share(value: float | None) -> str:
    """Three decimals, or a dash for None."""
    return "-" if value is None else f"{value:.3f}"
