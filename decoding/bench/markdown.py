"""A benchmark's reports as Markdown that a document can cite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..records.trace import Machine
from .goals import ReportData, verdicts


def as_markdown(reports: Sequence[ReportData], command: str, machine: Machine) -> str:
    """The command, the machine, then for each pair its speeds, ratios, passes and context, and the goals at the end."""
    where = machine.gpu or f"{machine.processor}, {machine.cores} cores"
    parts = ["# Benchmark", f"`{command}` on {where}; torch {machine.torch}, transformers {machine.transformers}."]
    for report in reports:
        parts += _report(report)
    rows = [verdict.row() for report in reports for verdict in verdicts(report)]
    if rows:
        parts += ["## Goals", table(["pair", "goal", "measured", ""], rows)]
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a bar inside a cell becomes a slash."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def _report(report: ReportData) -> list[str]:
    parts = [f"## {report['pair']}, {report['dtype']}, {report['device']}"]
    if report["figures"]:
        parts.append(
            table(["", "tokens/s", "from", "to", "with the prompt", "threads"], map(_speed, report["figures"]))
        )
    if report["ratios"]:
        parts.append(table(["ours / theirs", "median", "from", "to"], map(_ratio, report["ratios"])))
    lines = [
        f"- One {one['name']} pass takes {one['ms']:.3f} ms, its bytes alone {one['floor_ms']:.3f} ms."
        for one in report["passes"]
    ]
    lines += [
        f"- {one['lane']}: {one['short_ms']:.2f} ms per iteration at context 100, {one['long_ms']:.2f} at 900, "
        f"{one['ratio']:.2f}x ({one['low']:.2f} to {one['high']:.2f})."
        for one in report["growth"]
    ]
    if report["n_prompts"]:
        lines.append(f"- The same text from all on {report['same_text']} of {report['n_prompts']} prompts.")
    lines += [f"- {note}" for note in report["notes"]]
    return [*parts, "\n".join(lines)] if lines else parts


def _speed(figure: ReportData) -> list[str]:
    speeds = (figure[name] for name in ("tokens_per_s", "low", "high", "end_to_end"))
    return [figure["name"], *(f"{speed:.1f}" for speed in speeds), str(figure["threads"])]


def _ratio(ratio: ReportData) -> list[str]:
    return [f"{ratio['ours']} / {ratio['theirs']}", *(f"{ratio[name]:.2f}x" for name in ("median", "low", "high"))]
