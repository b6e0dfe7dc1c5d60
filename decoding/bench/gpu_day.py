"""All measurements on a GPU in one command: the steps, the most important first, and a summary of their results.

Every step is a separate command, so that a failure does not affect the others. Its output is written when it ends; a
step that has an output is not run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from ..errors import UserError
from ..files import write_whole
from ..records.run_file import load_run
from ..records.text import markdown_table
from .against import as_markdown

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


def plan(out: Path, minutes: float, pair: str = "") -> list[Step]:
    """The steps of a day of ``minutes`` on ``pair`` ("" is the default one), the most important first."""
    chosen = (f"--pair={pair}",) if pair else ()
    lossless = ("decoding", "lossless", "--device=cuda", "--limit=60", f"--minutes={minutes / 16:.2f}", "--json")
    evaluation = f"--minutes={minutes / 6:.2f}"
    return [
        Step("tests", ("pytest", "-q", "-m", "gpu", "tests/test_gpu.py"), 0.3),
        Step("lossless", (*lossless, "--dtype=float32", *chosen), 0.15),
        Step("lossless-bfloat16", (*lossless, "--dtype=bfloat16", *chosen), 0.15),
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
    """Runs the steps that are not done, writes ``out``/<step>.json and summary.md; yields a sentence for each step.

    Raises UserError if ``out`` holds results of other commands, for instance of another pair.
    """
    out.mkdir(parents=True, exist_ok=True)
    end = now() + 60 * minutes
    steps = plan(out, minutes, pair)
    for step in steps:
        done = read_step(out, step.name)
        if done is not None and _work(done["command"]) != _work(step.words):
            raise UserError(f"{out} holds results of other commands (see {step.name}.json): choose another folder.")
    for step in steps:
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


def _work(words: Sequence[str]) -> list[str]:
    """What a command does, whatever time it has and wherever it writes."""
    return [word for word in words if not word.startswith(("--minutes=", "--out="))]


def _result(step: Step, status: int, text: str) -> dict[str, Any]:
    """``data`` is the JSON that the command printed; if there is none, ``text`` is the end of its output."""
    try:
        data = json.JSONDecoder().raw_decode(text)[0]  # a sentence may follow
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
    """Markdown: each step's outcome, and the reports of the benchmark."""
    steps = markdown_table(["step", "outcome"], ([step.name, _outcome(out, step.name)] for step in plan(out, 1.0)))
    reports = (read_step(out, "bench") or {}).get("data") or []
    return "\n\n".join(["# A day on a GPU", steps, *map(as_markdown, reports)]) + "\n"


def _outcome(out: Path, name: str) -> str:
    result = read_step(out, name)
    if result is None:
        return "not run"
    if result["status"] and not (name.startswith("lossless") and result["data"]):
        return f"failed with status {result['status']}: {_last_line(result['text'])[:200] or 'no output'}"
    data = result["data"]
    if name == "tests":
        return _last_line(result["text"]).strip("= ")
    if name.startswith("lossless"):
        whose = "generate's" if name == "lossless" else "plain decoding's"
        equal = f"{data['equal']} of {data['compared']} texts equal to {whose}"
        return f"{equal}, {data['near_ties']} near ties, {len(data['different'])} differ"
    if name == "recording" and (out / "run.json").is_file():
        traces = load_run(out / "run.json").lanes
        return f"{sum(trace.verdict.same is True for trace in traces)} of {len(traces)} lanes wrote the same text"
    return "done"


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
