"""``python -m decoding policies``: all lookahead policies."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from ..lookahead.lanes import parse_lane
from ..lookahead.spec import PolicySpec
from ..lookahead.specs import all_specs
from .console import out, print_json
from .options import AsJson

COLUMNS = ("lane", "what it does", "source")


def policies(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the README's table only.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the lookahead policies: their lanes, behaviour and sources."""
    if markdown:
        print("\n".join(markdown_lines()))
    elif as_json:
        print_json([_plain(spec) for spec in all_specs().values()])
    else:
        out.print(_table())
        out.print("A draft may precede any lane: ngram/static:8 copies from the text so far.")


def markdown_lines() -> list[str]:
    """The table in the README's format."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---|---|"]
    for lanes, what, source in map(_row, all_specs().values()):
        lines.append(f"| {', '.join(f'`{lane}`' for lane in lanes)} | {what} | {source} |")
    return lines


def _row(spec: PolicySpec) -> tuple[list[str], str, str]:
    """The lanes, the caption of the first one, and the source."""
    lanes = list(dict.fromkeys(spec.evaluated + spec.offered))
    return lanes, spec.describe(parse_lane(lanes[0]).argument), spec.source


def _table() -> Table:
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for spec in all_specs().values():
        lanes, what, source = _row(spec)
        fitted = " (needs fit)" if spec.learned else ""
        table.add_row(Text("\n".join(lanes), style="bold"), Text(what), Text(source + fitted))
    return table


def _plain(spec: PolicySpec) -> dict:
    lanes, what, source = _row(spec)
    return {"policy": spec.name, "lanes": lanes, "what": what, "source": source, "learned": spec.learned}
