"""``python -m decoding fit``: train, calibrate and tune the learned policies of a pair."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from ..errors import Cancelled, UserError
from .console import (
    CANCELLED,
    AsJson,
    PairName,
    Target,
    as_text,
    cancel_on_interrupt,
    err,
    make_folder,
    out,
    print_json,
    progress_bar,
)


def fit(
    pair: PairName = "",
    draft: Annotated[str, typer.Option(help="Which draft of the pair, or all; with --target, its folder.")] = "",
    target: Target = "",
    suite: Annotated[str, typer.Option(help="Which prompts: a suite (see `suites list`), or all.")] = "all",
    train: Annotated[int, typer.Option(min=1, help="Prompts to train on.")] = 480,
    validation: Annotated[int, typer.Option(min=1, help="Prompts to calibrate and tune on.")] = 160,
    max_new_tokens: Annotated[int, typer.Option(min=16, max=1024, help="Length of each text.")] = 128,
    epochs: Annotated[int, typer.Option(min=1, max=100, help="Passes over the training data.")] = 12,
    seed: Annotated[int, typer.Option(min=0, help="Seed of training.")] = 0,
    only_chains: Annotated[
        bool,
        typer.Option("--only-chains", help="Keep the policies; only record the validation chains again."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fit the learned policies: write texts, train, calibrate, tune, and store them next to the draft."""
    from ..fit.data import FitOptions
    from ..fit.run import fit as fit_pair
    from ..fit.run import policies_folder

    options = FitOptions(suite, train, validation, max_new_tokens, epochs, seed)
    with cancel_on_interrupt() as cancel, progress_bar("Loading the models") as progress:
        loaded, drafts = _load(pair, target, draft)
        for name in drafts:
            make_folder(policies_folder(loaded, name))
        try:
            found = fit_pair(loaded, drafts, options, progress, cancel.is_set, only_chains)
        except Cancelled:
            err.print("Cancelled: nothing was written for the current draft.")
            raise typer.Exit(CANCELLED) from None
    rows = [_row(one.draft, policy) for one in found for policy in one.policies]
    if as_json:
        print_json(rows)
        return
    if rows:
        _show(rows)
    for one in found:
        done = "fitted" if one.policies else "recorded"
        err.print(as_text(f"{one.draft}: {done} in {one.seconds:.0f} s, written into {one.folder}."))


def _load(pair: str, target: str, draft: str) -> tuple[Any, list[str]]:
    """The pair, and the drafts to fit."""
    from ..engines.pair import load_pair
    from ..records.pairs import find_pair

    if target:
        if not draft:
            raise UserError("Name the draft's folder as well: --target FOLDER --draft FOLDER.")
        loaded = load_pair(target=target, draft=draft)
        return loaded, [loaded.default_draft]
    described = find_pair(pair)
    loaded = load_pair(described.name)
    drafts = list(described.drafts) if draft == "all" else [draft or described.default_draft]
    return loaded, drafts


def _row(draft: str, policy: Any) -> dict[str, Any]:
    figures = policy.metrics["validation"]
    tuned = {name: value for name, value in policy.tuned.items() if isinstance(value, int | float)}
    return {
        "draft": draft,
        "policy": policy.policy,
        "chosen": policy.architecture.get("chosen"),
        "tuned": tuned,
        "architecture": policy.architecture,
        **figures,
        "oracle_below_static_opt": 1.0 - policy.metrics["oracle_latency"] / policy.metrics["static_opt_latency"],
        "static_opt": policy.metrics["static_opt"],
        "candidates": policy.metrics["candidates"],
    }


def _show(rows: list[dict[str, Any]]) -> None:
    """A table per draft that fits 80 columns, followed by the tuned settings."""
    for draft, its_own in groupby(rows, lambda row: row["draft"]):
        own = list(its_own)
        table = Table(box=box.SIMPLE, title=Text(f"{draft}, on the validation split"))
        for column in ("policy", "gain", "oracle's", "AUC", "F1", "always", "error", "decision"):
            table.add_column(column, justify="left" if column == "policy" else "right")
        for row in own:
            table.add_row(
                row["policy"],
                f"{row['below_static_opt']:.1%}",
                f"{row['oracle_below_static_opt']:.1%}",
                f"{row.get('auc', float('nan')):.3f}",
                f"{row['f1']:.3f}",
                f"{row['f1_always_accept']:.3f}",
                f"{row['calibration_error']:.3f}",
                f"{row['decision_over_c']:.1%}",
            )
        out.print(table)
        for row in own:
            tuned = ", ".join(f"{name} {value:g}" for name, value in row["tuned"].items())
            out.print(Text(f"{row['policy']}: chosen {row['chosen']}; {tuned}"))
        out.print(Text(f"best static SL: {own[0]['static_opt']}"))
    out.print(
        "gain: how far the latency is below the best static SL's, simulated with this machine's costs; F1: at "
        "threshold 1/2, next to always-accept's; error: of calibration; decision: cost with features, in draft steps."
    )
