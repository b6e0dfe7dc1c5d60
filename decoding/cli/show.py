"""A run on a terminal: drafted tokens with their fates, figures, and where the time goes."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..analysis.lane_figures import lane_figures
from ..analysis.metrics import match_rate, static_opt, where_time_goes
from ..analysis.run_costs import run_costs
from ..analysis.seen import count_seen, seen_sentence
from ..analysis.steadiness import contradictions, how_timed, timings, unsteady, verdict
from ..records.run_file import load_run, to_plain
from ..records.text import counted, pieces, whole_text
from ..records.trace import Costs, Iteration, Run, Trace
from .console import AsJson, as_text, out, print_json, visible

# fate -> (style, mark before, mark after): the marks distinguish fates without colours
FATES = {
    "accepted": ("green", "", ""),
    "rejected": ("red strike", "✗", ""),
    "dropped": ("bright_black", "(", ")"),
    "correction": ("bold yellow", "»", ""),
    "bonus": ("bold cyan", "+", ""),
    "plain": ("", "", ""),
}
LABEL_WIDTH = 18
RANGE_WIDTH = 9  # "2.10–3.05"


def show(
    run_file: Annotated[Path, typer.Argument(help="A run file, written by compare --out or by the recorder.")],
    as_json: AsJson = False,
) -> None:
    """Show a run file: each lane token by token, figures, and where the time goes."""
    print_run(load_run(run_file), as_json)


def print_run(run: Run, as_json: bool) -> None:
    """Its figures as JSON, or all of it for a reader."""
    if as_json:
        print_json(summary(run))
    else:
        show_run(run, out)


def show_run(run: Run, console: Console) -> None:
    console.print(_heading(run))
    console.print(_legend())
    for trace in run.lanes:
        title = as_text(f" {trace.lane} ", "bold")
        console.print(Panel(lane_text(run, trace), title=title, title_align="left", box=box.ROUNDED))
    for traces in _groups_that_fit(run.lanes, console.width):
        console.print(figures_table(run, traces))
    console.print(time_table(run))
    for line in remarks(run):
        console.print(as_text(line))


def _heading(run: Run) -> Text:
    target, machine = run.pair.target, run.machine
    where = machine.gpu or f"{machine.processor}, {counted(target.threads, 'thread')}"
    return Text.assemble(
        as_text(run.pair.name, "bold"),
        as_text(f" · {target.dtype} on {where} · {target.engine} engine · rule {run.settings.rule} · {how_timed(run)}"),
    )


def _legend() -> Text:
    legend = Text()
    for fate, (style, before, after) in FATES.items():
        if fate != "plain":
            legend.append(f"{before}{fate}{after}", style=style)
            legend.append("  ")
    return legend.append("│ next iteration")


def lane_text(run: Run, trace: Trace) -> Text:
    """All tokens of a lane in order, each with the colour and marks of its fate."""
    shown = Text()
    kept = pieces(trace.output, run.vocab)
    for iteration in trace.iterations:
        if trace.draft and iteration.start:
            shown.append("│", style="bright_black")
        _append_iteration(shown, run, iteration, kept)
    return shown


def _append_iteration(shown: Text, run: Run, iteration: Iteration, kept: list[str]) -> None:
    at = iteration.start
    for token in iteration.all_tokens:
        style, before, after = FATES[token.fate]
        if token.fate in ("rejected", "dropped"):  # what is not in the text breaks no line
            text = whole_text([token.id], run.vocab, special=True).replace("\n", "⏎").replace("\t", "⇥")
            text = re.sub(" {4,}", "···", text)
        else:
            text, at = kept[at], at + 1
            if text.startswith("\n") and token.fate not in ("accepted", "plain"):
                text = text.replace("\n", "⏎\n")  # the mark before it stays visible
        shown.append(before + visible(text) + after, style=style)


def _groups_that_fit(traces: list[Trace], width: int) -> list[list[Trace]]:
    """Groups of lanes that fit side by side in a table of this width."""
    groups: list[list[Trace]] = []
    room = 0
    for trace in traces:
        taken = max(len(trace.lane), RANGE_WIDTH) + 3
        if taken > room:
            groups.append([])
            room = width - LABEL_WIDTH - 3
        groups[-1].append(trace)
        room -= taken
    return groups


def figures_table(run: Run, traces: list[Trace]) -> Table:
    """Figures down, lanes across."""
    columns = [{figure.key: figure for figure in lane_figures(run, trace)} for trace in traces]
    labels = {key: figure.label for column in columns for key, figure in column.items()}
    table = Table(box=box.SIMPLE_HEAD, title="Figures", title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("", min_width=LABEL_WIDTH)
    for trace in traces:
        table.add_column(as_text(trace.lane), justify="right", no_wrap=True, min_width=RANGE_WIDTH)
    for key, label in labels.items():
        table.add_row(label, *(_cell(column[key].text) if key in column else "" for column in columns))
    return table


def _cell(text: str) -> str:
    """Puts a range on its own line, so that four lanes fit a terminal of 80 columns."""
    value, _, rest = text.partition(" (")
    return f"{value}\n{rest[:-1].replace(' to ', '–')}" if " to " in rest else text


def time_table(run: Run) -> Table:
    """Each lane's time by phase in the replayed repeat, in milliseconds and as a share of the decode time."""
    title = "Where the time goes (ms of the replayed repeat, share of its decode time)"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("lane")
    for name in ("prefill", "draft", "check", "policy", "rest", "decode"):
        table.add_column(name, justify="right", no_wrap=True)
    for trace in run.lanes:
        parts = where_time_goes(run, trace)
        if parts:
            decode = sum(parts.values()) - parts["prefill"]
            shares = [f"{parts[k] * 1e3:.1f} {parts[k] / decode:3.0%}" if decode else "" for k in list(parts)[1:]]
            table.add_row(as_text(trace.lane), f"{parts['prefill'] * 1e3:.1f}", *shares, f"{decode * 1e3:.1f}")
    return table


def remarks(run: Run) -> list[str]:
    """Sentences on the whole run: costs, the best static SL, the verdict, each lane's notes."""
    costs = run_costs(run)
    lines = [
        f"A target pass over one token takes {costs.target_s * 1e3:.2f} ms; by this run's iterations, checking 6 "
        f"tokens takes {costs.verify(6):.2f} times that; the loop's own work {costs.overhead:.3f}."
    ]
    for name, chain in run.chains.items():
        rate = match_rate(chain)
        best = static_opt(run, name)
        if rate is not None and best is not None:
            lines.append(
                f"Draft {name}: c = {costs.draft_step[name]:.3f}{_first(costs, name)}, match rate {rate:.0%}; "
                f"best static SL of this run, with hindsight: {best[0]} ({best[1]:.2f}× simulated)."
            )
    lines += [f"{trace.lane}: {seen_sentence(run, trace)}" for trace in run.lanes if trace.draft and trace.p_grey]
    lines.append(verdict(run, str)["text"])
    lines += [f"{trace.lane}: {note}" for trace in run.lanes for note in trace.notes]
    if doubtful := contradictions(run):
        lines.append(unsteady(doubtful))
    return lines


def _first(costs: Costs, draft: str) -> str:
    """What the first guess of an iteration costs beyond c, where it is worth saying."""
    more = costs.first_step.get(draft, 0.0)
    return f" ({more:.3f} more for the first guess of an iteration)" if more >= 0.005 else ""


def summary(run: Run) -> dict[str, Any]:
    """The run's figures as plain data."""
    first = run.baseline or run.lanes[0]
    return {
        "id": run.id,
        "pair": run.pair.name,
        "dtype": run.pair.target.dtype,
        "engine": run.pair.target.engine,
        "device": run.pair.target.device,
        "threads": run.pair.target.threads,
        "timings": timings(run),
        "costs": to_plain(run.costs),
        "text": whole_text(first.output, run.vocab),
        "lanes": [_lane_summary(run, trace) for trace in run.lanes],
    }


def _lane_summary(run: Run, trace: Trace) -> dict[str, Any]:
    return {
        "lane": trace.lane,
        "draft": trace.draft,
        "finish": trace.finish,
        "tokens": len(trace.output),
        "same_text": trace.verdict.same,
        "first_difference": trace.verdict.first_difference,
        "figures": {figure.key: figure.value for figure in lane_figures(run, trace)},
        "seconds": where_time_goes(run, trace),
        **({"picture": asdict(seen)} if (seen := count_seen(trace)) else {}),
    }
