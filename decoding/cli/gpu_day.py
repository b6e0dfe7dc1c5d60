"""``python -m decoding gpu-day``: everything that waits for a GPU, most important first, resumable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from .console import err, out
from .options import PairName

TIMED_OUT = 124


def gpu_day(
    minutes: Annotated[float, typer.Option(help="Time for all steps together.", min=0.1)] = 25.0,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results; an existing one is continued.")] = Path(
        "results/gpu"
    ),
    pair: PairName = "",
) -> None:
    """Run GPU tests, lossless, bench, a recording and an evaluation on CUDA, and write summary.md."""
    from ..bench.gpu_day import run_day
    from ..engines.loading import choose_device

    choose_device("cuda")  # without one: a sentence
    for sentence in run_day(folder, minutes, run_module, pair):
        err.print(sentence)
    out.print((folder / "summary.md").read_text(encoding="utf-8"), markup=False)


def run_module(words: list[str], minutes: float) -> tuple[int, str]:
    """``python -m`` with ``words`` in a separate process: its exit status and output, with errors only if it failed."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, timeout=60 * minutes, check=False
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        return TIMED_OUT, said.decode(errors="replace") if isinstance(said, bytes) else said
    return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr
