"""A benchmark's reports as Markdown, for a terminal and for a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..records.machine import describe_machine
from ..records.text import markdown_table

ReportData = dict[str, Any]
"""A report of ``bench`` as plain data."""
RATIO = "{median:.2f}× ({low:.2f} to {high:.2f})"
SPEEDS = ("", "tokens/s", "range", "with prompt", "threads", "draft", "check", "policy", "rest")


def as_document(reports: Sequence[ReportData], command: str, gpu: str | None) -> str:
    """The command and the machine, then the reports."""
    machine = describe_machine(gpu)
    made = f"`{command}` on {machine.where}; torch {machine.torch}, transformers {machine.transformers}."
    return "\n\n".join(["# Benchmark", made, *map(as_markdown, reports)]) + "\n"


def as_markdown(report: ReportData) -> str:
    """A report's speeds (median and range of tokens/s, with the time's shares), ratios, passes and notes."""
    parts = [f"## {report['pair']}, {report['dtype']}, {report['device']}"]
    if report["figures"]:
        parts.append(markdown_table(SPEEDS, map(_speed, report["figures"])))
    if report["ratios"]:
        rows = ([f"{one['ours']} / {one['theirs']}", RATIO.format(**one["ratio"])] for one in report["ratios"])
        parts.append(markdown_table(["ours / theirs", "ratio"], rows))
    lines = [
        f"- One {one['name']} pass takes {one['ms']:.3f} ms, {one['ms'] / one['floor_ms']:.2f} times its bytes' "
        f"{one['floor_ms']:.3f} ms."
        for one in report["passes"]
    ]
    if report["n_prompts"]:
        lines.append(f"- The same text from all on {report['same_text']} of {report['n_prompts']} prompts.")
    lines += [f"- {note}" for note in report["notes"]]
    return "\n\n".join([*parts, "\n".join(lines)]).rstrip()


def _speed(figure: ReportData) -> list[str]:
    speeds, shares = figure["tokens_per_s"], figure["shares"]
    return [
        figure["name"],
        f"{speeds['median']:.1f}",
        f"{speeds['low']:.1f} to {speeds['high']:.1f}",
        f"{figure['end_to_end']:.1f}",
        str(figure["threads"]),
        *(f"{share:.1%}" for share in shares or ()),
        *([""] * 4 if shares is None else ()),
    ]
