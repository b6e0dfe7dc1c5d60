"""All measurements on a GPU in one command: the steps, the most important first, and their results next to the goals.

Every step is a separate command, so that a failure does not affect the others. Its output is written when it ends; a
step that has an output is not run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from ..files import write_whole
from ..records.run_file import load_run

LEAST_MINUTES = 0.5  # with less time left no step is started
LANES = "autoregressive,static:3,static:5,heuristic,confidence:0.4,oracle"
PROMPT = "Explain in three sentences why the sky is blue."

Run = Callable[[list[str], float], tuple[int, str]]
"""``run(words, minutes)``: runs ``python -m`` with ``words`` for at most ``minutes``; exit status and printed text."""


@dataclass(frozen=True, slots=True)
class Step:
    """``share``: the step's time limit, as a share of the time left when it starts."""

    name: str
    words: tuple[str, ...]
    share: float


@dataclass(frozen=True, slots=True)
class Goal:
    """``reads`` finds the figure in a report of ``bench``; None if the report has none."""

    text: str
    pairs: tuple[str, ...]  # prefixes of the names of the pairs that have this goal; "" matches all
    holds: Callable[[float], bool]
    reads: Callable[[dict[str, Any]], float | None]


def plan(out: Path, minutes: float, pair: str = "") -> list[Step]:
    """The steps of a day of ``minutes`` on ``pair`` ("" is the default one), the most important first."""
    chosen = (f"--pair={pair}",) if pair else ()
    lossless = f"--minutes={minutes / 8:.2f}"
    evaluation = f"--minutes={minutes / 6:.2f}"
    return [
        Step("tests", ("pytest", "-q", "-m", "gpu", "tests/test_gpu.py"), 0.3),
        Step("lossless", ("decoding", "lossless", "--device=cuda", "--limit=60", lossless, "--json", *chosen), 0.3),
        Step("bench", ("decoding", "bench", "--device=cuda", "--json", *chosen), 0.6),
        Step(
            "recording",
            ("decoding", "compare", f"--prompt={PROMPT}", f"--lanes={LANES}", "--repeats=5", "--json", *chosen)
            + (f"--out={out / 'run.json'}",),
            0.4,
        ),
        Step("evaluation", ("decoding", "evaluate", f"--out={out / 'evaluation'}", evaluation, "--json", *chosen), 0.9),
    ]


def run_day(out: Path, minutes: float, run: Run, pair: str = "", now: Callable[[], float] = monotonic) -> Iterator[str]:
    """Runs the steps that are not done, writes ``out``/<step>.json and summary.md; yields a sentence for each step."""
    out.mkdir(parents=True, exist_ok=True)
    end = now() + 60 * minutes
    for step in plan(out, minutes, pair):
        left = (end - now()) / 60
        if (done := read_step(out, step.name)) is not None and done["status"] == 0:
            yield f"{step.name}: done before."
        elif left < LEAST_MINUTES:
            yield f"{step.name}: no time was left. Run the command again to continue."
        else:
            yield f"{step.name}: running, for at most {step.share * left:.1f} minutes."
            status, text = run(list(step.words), step.share * left)
            write_whole(out / f"{step.name}.json", json.dumps(_result(step, status, text), indent=1) + "\n")
        write_whole(out / "summary.md", summary(out))


def _result(step: Step, status: int, text: str) -> dict[str, Any]:
    """``data`` is the JSON that the command printed; if there is none, ``text`` is the end of its output."""
    start = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=-1)
    try:
        data = json.loads(text[start:]) if start >= 0 else None
    except ValueError:
        data = None
    return {"command": step.words, "status": status, "data": data, "text": "" if data is not None else text[-4000:]}


def read_step(out: Path, name: str) -> dict[str, Any] | None:
    """The result of a step; None if it was not run or its file is broken."""
    try:
        return json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def summary(out: Path) -> str:
    """Markdown: each step's outcome, and each goal with its figure."""
    lines = ["# A day on a GPU", "", "| step | outcome |", "|---|---|"]
    for step in plan(out, 1.0):
        lines.append(f"| {step.name} | {_outcome(out, step.name)} |")
    lines += ["", "| pair | goal | measured | |", "|---|---|---|---|"]
    bench = read_step(out, "bench")
    for report in (bench or {}).get("data") or []:
        for goal in GOALS:
            if report["pair"].startswith(goal.pairs):
                figure = goal.reads(report)
                measured = "not measured" if figure is None else f"{figure:.2f}"
                verdict = "" if figure is None else "reached" if goal.holds(figure) else "missed"
                lines.append(f"| {report['pair']} | {goal.text} | {measured} | {verdict} |")
    return "\n".join(lines) + "\n"


def _outcome(out: Path, name: str) -> str:
    result = read_step(out, name)
    if result is None:
        return "not run"
    if result["status"]:
        last = (result["text"].strip().splitlines() or ["no output"])[-1]
        return f"failed with status {result['status']}: {last[:200]}".replace("|", "/")
    data = result["data"]
    if name == "tests":
        return (result["text"].strip().splitlines() or [""])[-1].strip("= ").replace("|", "/")
    if name == "lossless":
        return f"{data['equal']} of {data['compared']} texts equal to generate's, {data['near_ties']} near ties"
    if name == "recording" and (out / "run.json").is_file():
        traces = load_run(out / "run.json").lanes
        return f"{sum(trace.verdict.same is True for trace in traces)} of {len(traces)} lanes wrote the same text"
    return "done"


def _ratio(ours: str, theirs: str) -> Callable[[dict[str, Any]], float | None]:
    def read(report: dict[str, Any]) -> float | None:
        found = (one for one in report["ratios"] if (one["ours"], one["theirs"]) == (ours, theirs))
        return next((one["median"] for one in found), None)

    return read


def _over_floor(report: dict[str, Any]) -> float | None:
    """A target pass over the time to read its bytes once."""
    found = (one for one in report["passes"] if one["name"] == "target" and one["floor_ms"])
    return next((one["ms"] / one["floor_ms"] for one in found), None)


def _draft_step_us(report: dict[str, Any]) -> float | None:
    """Microseconds of a draft step within a chain, its share of the launch included."""
    return next((1e3 * one["ms"] for one in report["passes"] if one["name"] == "chained draft"), None)


_ASSISTED = _ratio("static:5", "hf assisted 5")
GOALS = (
    Goal("static:5 at least 8x assisted generation", ("codepair",), lambda x: x >= 8, _ASSISTED),
    Goal("static:5 at least 2x assisted generation", ("smollm2", "1B", "8B"), lambda x: x >= 2, _ASSISTED),
    Goal("a target pass at most 1.4x the time of its bytes", ("8B",), lambda x: x <= 1.4, _over_floor),
    Goal("a chained draft step under 60 microseconds", ("",), lambda x: x < 60, _draft_step_us),
)
