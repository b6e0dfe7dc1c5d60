"""Run files opened by visitors: read and drawn in a separate process, one at a time and with a time limit.

A run file is untrusted, and drawing it takes work that grows with its content. The page must survive anything that it
does: the process has a memory and a time limit, and its queue is short. Started as ``python -m viz.opened``: one job on
stdin, the answer on stdout.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from decoding.errors import UserError, is_out_of_memory
from decoding.records.run_file import run_from_json
from decoding.records.trace import Run

from .export import export_html
from .player.payload import run_payload

LIMIT_S = 20.0  # per job, including the start of the process
MAX_WAITING = 5
MAX_MEMORY_BYTES = 2 * 2**30
ROOT = Path(__file__).resolve().parent.parent

TOO_LONG = "This file takes longer to draw than this page gives to one: record a shorter run, or one with fewer lanes."
TOO_LARGE = "This file takes more memory to draw than this page gives to one: record a shorter run."
BROKEN = "This file cannot be drawn: the process that read it ended without an answer."
BUSY = "Other visitors' files are being read at the moment: try again soon."


class Sandbox:
    """The queue of the process that works on visitors' runs."""

    def __init__(self) -> None:
        self._places, self._turn = threading.Semaphore(1 + MAX_WAITING), threading.Lock()

    def do(self, kind: str, text: str, identifier: str) -> Any:
        """Runs job ``kind`` (a key of JOBS) on the run file ``text`` and returns its answer; blocks. Raises UserError.

        ``identifier``: the run's name here.
        """
        if not self._places.acquire(blocking=False):
            raise UserError(BUSY)
        try:
            with self._turn:
                answer = _heard(self._run(json.dumps({"kind": kind, "id": identifier, "text": text}).encode()))
        finally:
            self._places.release()
        if "error" in answer:
            raise UserError(answer["error"])
        return answer["answer"]

    def _run(self, job: bytes) -> bytes:
        command = [sys.executable, "-m", "viz.opened"]
        try:
            return subprocess.run(command, cwd=ROOT, input=job, stdout=subprocess.PIPE, timeout=LIMIT_S).stdout
        except subprocess.TimeoutExpired:
            raise UserError(TOO_LONG) from None


def _heard(answer: bytes) -> dict[str, Any]:
    try:
        return json.loads(answer)
    except ValueError as error:
        raise UserError(BROKEN) from error


# -- inside the process ----------------------------------------------------------------------------------


def _figures(run: Run, **more: Any) -> list[dict[str, Any]]:
    from .figures.race import draw_run  # with Plotly, which the other jobs need not wait for

    return [drawing.to_dict() for drawing in draw_run(run)]


JOBS: dict[str, Callable[..., Any]] = {
    "payload": run_payload,
    "learn": partial(run_payload, details=True),
    "figures": _figures,
    "html": export_html,
}
"""What can be made of a run: each takes the run and its ``origin``."""


def work(job: dict[str, str]) -> dict[str, Any]:
    """Does one job: ``{"answer": ...}``, or ``{"error": sentence}``."""
    try:
        run = replace(run_from_json(job["text"]), id=job["id"])
        return {"answer": JOBS[job["kind"]](run, origin="imported")}
    except UserError as error:
        return {"error": str(error)}
    except Exception as error:
        if is_out_of_memory(error):
            return {"error": TOO_LARGE}
        raise


def main() -> None:
    _bound_memory()
    answer = work(json.load(sys.stdin.buffer))
    sys.stdout.write(json.dumps(answer, separators=(",", ":")))


def _bound_memory() -> None:
    try:
        import resource
    except ImportError:  # not POSIX
        return
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


if __name__ == "__main__":
    main()
