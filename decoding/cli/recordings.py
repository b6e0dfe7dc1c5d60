"""``python -m decoding recordings``: record the showcase or the lessons' runs again, or list what is stale."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..backends.jobs import Jobs
from ..backends.recorded import (
    MAX_BYTES,
    OF_LESSONS,
    RECORDINGS,
    order_index,
    plan_recording,
    read_index,
    stale_recordings,
    store_recording,
)
from ..errors import UserError
from ..records.pairs import PairDescription, find_pair
from ..records.suites import Prompt, load_lessons, load_showcase
from .console import CANCELLED, MaxNewTokens, Repeats, cancel_on_interrupt, err, make_folder, out


def recordings(
    check: Annotated[bool, typer.Option("--check", help="Only list stale ones; exit status 1 if any are.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="The id of a prompt to record; may be repeated.")] = None,
    max_new_tokens: MaxNewTokens = 128,
    repeats: Repeats = 5,
    pair: Annotated[str, typer.Option(help="The pair to record with, from models/.")] = "",
    lessons: Annotated[bool, typer.Option("--lessons", help="The runs that lessons need, not the showcase.")] = False,
    folder: Annotated[Path | None, typer.Option(help="The folder of the recordings; default: theirs.")] = None,
) -> None:
    """Record the showcase prompts, for the page's first paint and for visitors without a GPU."""
    described = find_pair(pair)
    prompts, all_there = (load_lessons(),) * 2 if lessons else (load_showcase(described.chat), load_showcase())
    folder = folder or (OF_LESSONS if lessons else RECORDINGS)
    if described.kind != "embedded":
        raise UserError("Recordings need a pair whose weights are in models/: train one, or name one with --pair.")
    chosen = _choose(prompts, only)
    if check:
        stale = stale_recordings(folder, chosen, described, all_there)
        for sentence in stale:
            out.print(Text(sentence))
        out.print(f"{len(stale)} of {len(chosen)} recordings are stale." if stale else "All recordings are fresh.")
        raise typer.Exit(1 if stale else 0)
    make_folder(folder)
    _check_others(folder, chosen, described)
    with cancel_on_interrupt() as cancel:
        done = _record(chosen, described, folder, cancel, max_new_tokens, repeats)
    order_index(folder, all_there)
    if done < len(chosen):
        err.print(f"Cancelled: {done} of {len(chosen)} were recorded; the others are unchanged.")
        raise typer.Exit(CANCELLED)


def _check_others(folder: Path, prompts: list[Prompt], pair: PairDescription) -> None:
    """Raises UserError if recordings of another pair would be overwritten."""
    wanted = {prompt.id for prompt in prompts}
    others = {info.pair for info in read_index(folder) if info.id in wanted} - {pair.name}
    if others:
        names = ", ".join(sorted(others))
        raise UserError(f"{folder} has these prompts' recordings of {names}: name another --folder.")


def _choose(prompts: list[Prompt], only: list[str] | None) -> list[Prompt]:
    names = [prompt.id for prompt in prompts]
    for name in only or []:
        if name not in names:
            raise UserError(f"There is no such prompt as '{name}'. There are: {', '.join(names)}.")
    return [prompt for prompt in prompts if not only or prompt.id in only]


def _record(
    prompts: list[Prompt],
    pair: PairDescription,
    folder: Path,
    cancel: threading.Event,
    max_new_tokens: int,
    repeats: int,
) -> int:
    """Records ``prompts`` one after another with one loaded pair; returns the number finished."""
    from .compare import run_here

    jobs = Jobs(sets_lanes=False)
    for done, prompt in enumerate(prompts):
        request = plan_recording(prompt, pair, max_new_tokens, repeats)
        run = run_here(request, cancel, jobs, prompt.id)
        if run is None or cancel.is_set():  # stopped, perhaps with fewer repeats
            return done
        size = store_recording(run, prompt, pair, folder)
        note = f", over {MAX_BYTES // 1000} KB" if size > MAX_BYTES else ""
        err.print(Text(f"{prompt.id}: {size // 1000} KB{note}"))
    return len(prompts)
