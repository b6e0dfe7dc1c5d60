"""``python -m decoding pairs``: the pairs that can be loaded, and what they need."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ..records.pairs import PairDescription, describe_pairs
from .console import out, print_json
from .options import AsJson


def pairs(as_json: AsJson = False) -> None:
    """List the named pairs: those shipped with the program and presets from the Hub."""
    described = describe_pairs()
    if as_json:
        print_json([_plain(pair) for pair in described])
        return
    table = Table(box=None, pad_edge=False)
    for column in ("pair", "target", "drafts", "loads"):
        table.add_column(column, overflow="fold")
    for index, pair in enumerate(described):
        name = Text(pair.name + (" (default)" if index == 0 and pair.kind == "embedded" else ""), style="bold")
        drafts = ", ".join(
            f"{draft}*" if draft == pair.default_draft and len(pair.drafts) > 1 else draft for draft in pair.drafts
        )
        table.add_row(name, Text(_shown(pair, pair.target)), Text(drafts), _loads(pair))
    out.print(table)
    out.print(
        "* the default draft. ngram (prompt lookup) is a draft of every pair. "
        "Any other pair: --target FOLDER-OR-HUB-ID --draft FOLDER-OR-HUB-ID."
    )


def _shown(pair: PairDescription, place: str) -> str:
    """An embedded model by its folder's name, a preset's by its Hub id."""
    return Path(place).name if pair.kind == "embedded" else place


def _plain(pair: PairDescription) -> dict:
    """JSON-ready, without this machine's paths."""
    data = asdict(pair)
    data["target"] = _shown(pair, pair.target)
    data["drafts"] = {name: _shown(pair, place) for name, place in pair.drafts.items()}
    return data


def _loads(pair: PairDescription) -> Text:
    if not pair.loadable:
        return Text.assemble(("no", "red"), f": {pair.reason}")
    where = "" if pair.kind == "embedded" else " (downloaded when first used)"
    return Text.assemble(("yes", "green"), where, f". {pair.reason}" if pair.reason else "")
