"""``python -m decoding whatif``: simulates other lanes or costs on a run file, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from ..analysis.metrics import Spread, speedup
from ..analysis.run_costs import run_costs
from ..analysis.whatif import Simulated, sweep
from ..lookahead.lanes import Lane, expand_lanes, parse_lane
from ..records.run_file import load_run
from ..records.trace import Run
from .console import AsJson, as_text, out, print_json


def whatif(
    run_file: Annotated[Path, typer.Argument(help="A run file written by compare --out.")],
    lanes: Annotated[str, typer.Option(help="Ranges: static:1..16,confidence:0.2..0.8/0.05.")] = "static:1..20",
    cost_ratio: Annotated[float | None, typer.Option(help="Another c: draft step time / target pass time.")] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate lanes on the text of a recorded run, with other lookahead or another draft cost.

    A policy without a number takes that of the run's own lane, if it has one.
    """
    run = load_run(run_file)
    asked = [_as_run(run, lane) for lane in expand_lanes(lanes)]
    found = sweep(run, asked, cost_ratio=cost_ratio)
    timed = {trace.lane: speedup(run, trace) for trace in run.lanes if cost_ratio is None}
    measured = {lane: spread for lane, spread in timed.items() if spread is not None}
    if as_json:
        print_json([_plain(lane, one, measured.get(lane)) for lane, one in found.items()])
    else:
        _show(run, found, measured, cost_ratio)


def _as_run(run: Run, lane: Lane) -> Lane:
    """``lane``, with the number with which its policy ran if none is asked for: of ``disco`` e.g. ``disco:0.45``."""
    asked = lane.draft_in(run.pair.default_draft), lane.policy
    same = (trace.lane for trace in run.lanes if (trace.draft, trace.policy) == asked)
    return lane if lane.argument or lane.is_oracle else parse_lane(next(same, lane.text))


def _plain(lane: str, found: Simulated, measured: Spread | None) -> dict[str, Any]:
    counts = found.counts
    return {
        "lane": lane,
        "speedup_simulated": found.speedup,
        "speedup_measured": measured.median if measured else None,
        "tokens": found.n_tokens,
        "target_passes": counts.target_passes,
        "draft_passes": counts.draft_passes,
        "accepted": counts.accepted,
        "iterations": found.iterations,
    }


def _show(run: Run, found: dict[str, Simulated], measured: dict[str, Spread], cost_ratio: float | None) -> None:
    own = run_costs(run).draft_step
    c = ", ".join(f"{name} {cost_ratio if cost_ratio is not None else own[name]:.3g}" for name in run.chains)
    out.print(as_text(f"Simulated on {found[next(iter(found))].n_tokens} tokens of run {run.id}; c: {c}"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("lane", no_wrap=True)
    passes = ("tokens per\ntarget pass", "target\npasses", "draft\npasses", "thrown\naway")
    for heading in ("speedup", "measured", *passes):
        table.add_column(heading, justify="right", no_wrap=True)
    best = max(one.speedup for one in found.values())
    for lane, one in found.items():
        spread, counts = measured.get(lane), one.counts
        cells = (
            f"{one.speedup:.2f}×",
            f"{spread.median:.2f}×" if spread else "",
            f"{counts.tokens_per_target_pass or 1:.2f}",
            str(counts.target_passes),
            str(counts.draft_passes),
            str(counts.thrown_away),
        )
        table.add_row(as_text(lane), *cells, style="bold" if one.speedup == best else "")
    out.print(table)
    if len(found) > 1:
        fastest = max(found, key=lambda lane: found[lane].speedup)
        out.print(as_text(f"With hindsight, on this text, {fastest} is the fastest of them."))
    if remark := _ranked_otherwise(found, measured):
        out.print(as_text(remark))


def _ranked_otherwise(found: dict[str, Simulated], measured: dict[str, Spread]) -> str:
    """A sentence where the simulation names another fastest lane than the clock, of those that ran; else ""."""
    both = [lane for lane in found if lane in measured]
    if not both:
        return ""
    simulated = max(both, key=lambda lane: found[lane].speedup)
    timed = max(both, key=lambda lane: measured[lane].median)
    if simulated == timed:
        return ""
    return (
        f"The simulation ranks {simulated} first of the lanes that ran, the clock {timed} "
        f"({measured[timed].median:.2f}× against {measured[simulated].median:.2f}×). Trust the clock."
    )
