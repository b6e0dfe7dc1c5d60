"""``python -m decoding compare``: one prompt, several lanes, on this terminal."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from ..backends.jobs import Jobs
from ..errors import UserError, explained
from ..lookahead.lanes import expand_lanes
from ..records.events import Event, guarded, new_id, numbered
from ..records.generate import NOT_AGAIN, is_recorded
from ..records.request import MAX_PROMPT_CHARS, CompareRequest, request_from_dict
from ..records.run_file import load_run, request_again, run_of_events, save_run
from ..records.trace import Run
from .console import (
    CANCELLED,
    AsJson,
    Tell,
    cancel_on_interrupt,
    err,
    make_folder,
    progress_bar,
    refuse_beside,
    with_settings,
)


@with_settings
def compare(
    context: typer.Context,
    prompt_file: Annotated[Path | None, typer.Option(help="A file with the text to continue; - is stdin.")] = None,
    image: Annotated[
        Path | None, typer.Option(help="A PNG, JPEG or WebP file, for a target that reads photographs.")
    ] = None,
    hold_image: Annotated[
        bool, typer.Option("--hold-image", help="Store the whole photograph in the run file, not only a small preview.")
    ] = False,
    again: Annotated[
        Path | None,
        typer.Option(
            help="Repeat this run file with its settings, number formats and cost curves. There is no other setting, "
            "except --image for a photograph that the file does not contain."
        ),
    ] = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="Write the run file here.")] = None,
    as_json: AsJson = False,
    **settings: Any,
) -> None:
    """Decode one prompt with several lookahead policies and show each of them token by token."""
    from .show import print_run

    jobs = None
    if again is None:
        settings["prompt"] = _read_prompt(settings["prompt"], prompt_file)
        settings["lanes"] = [lane.text for lane in expand_lanes(settings["lanes"])]
        settings["picture"] = _picture(settings["picture"], image)
        request = request_from_dict(settings)
    elif settings["prompt"] or prompt_file is not None:
        raise UserError("The run file has a prompt: give either --again FILE or a prompt.")
    else:
        refuse_beside(context, "--again", "--image", "--hold-image")
        request, jobs = _repeated(load_run(again), image)
    if out_file is not None:
        _check_writable(out_file)
    with cancel_on_interrupt() as cancel:
        run = run_here(request, cancel, jobs or Jobs())
    if run is None:
        err.print("Cancelled: the run was not finished and nothing was written.")
        raise typer.Exit(CANCELLED)
    if hold_image and run.picture and run.picture.preview:
        run.picture.file = request.picture
    if out_file is not None:  # before anything is shown: a closed pipe must not cost the run
        save_run(run, out_file)
    print_run(run, as_json)
    if out_file is not None:
        err.print(Text(f"Wrote {out_file}"))


def _picture(scene: str, file: Path | None) -> str:
    """A request's picture: a scene, or the photograph in ``file``. Raises UserError."""
    from ..pictures.photo import pack_file

    if scene and file is not None:
        raise UserError("Give one picture: either --picture SCENE or --image FILE.")
    return scene if file is None else pack_file(file)


def _repeated(run: Run, image: Path | None) -> tuple[CompareRequest, Jobs]:
    """The request of ``run``, and jobs whose policies run as it names them and weigh its costs. Its photograph is the
    one in ``image``, or that which its file holds.
    """
    if is_recorded(run):
        raise UserError(NOT_AGAIN)
    held = run.picture.file if run.picture else ""
    picture = _picture("", image) or held or run.asked.picture
    return replace(request_again(run), picture=picture), Jobs(costs=run.costs, sets_lanes=False)


def run_here(request: CompareRequest, cancel: threading.Event, jobs: Jobs, run_id: str = "") -> Run | None:
    """Runs the comparison in this process, with progress on stderr; None if it was cancelled. Raises UserError."""
    run = run_id or new_id()
    events = guarded(jobs.run("compare", asdict(request), run, cancel.is_set))
    with progress_bar("Starting") as progress:
        return run_of_events(_shown(numbered(run, events), progress))


def _shown(events: Iterable[Event], progress: Tell) -> Iterator[Event]:
    """``events``, told on their way."""
    lanes: list[str] = []
    for event in events:
        data = event.data
        if event.kind == "started":
            lanes = data["lanes"]
        elif event.kind == "progress":
            progress(data["message"], data.get("fraction"))
        elif event.kind == "lane_started":
            progress(f"Timing {lanes[data['lane']]}, repeat {data['repeat'] + 1}", None)
        yield event


def _check_writable(file: Path) -> None:
    """Raises UserError if ``file`` cannot be written: to be known before a long run, not after it."""
    if not file.absolute().parent.is_dir():
        raise UserError(f"There is no folder {file.parent} to write {file.name} into.")
    if file.is_dir():
        raise UserError(f"{file} is a folder: name the file to write in it.")
    if file.exists() and not file.is_file():
        raise UserError(f"{file} is no regular file: name another.")
    if file.exists() and not os.access(file, os.W_OK):
        raise UserError(f"{file} is write-protected: name another.")
    make_folder(file.absolute().parent)


def _read_prompt(prompt: str, file: Path | None) -> str:
    if bool(prompt) == (file is not None):
        raise UserError("Give the text to continue: either --prompt TEXT or --prompt-file FILE.")
    if file is None:
        return prompt
    with (
        explained(f"Cannot read the prompt file {file}"),
        nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as opened,
    ):
        data = opened.read(4 * MAX_PROMPT_CHARS + 1)
    if len(data) > 4 * MAX_PROMPT_CHARS:
        raise UserError(f"The prompt file {file} is too large: at most {MAX_PROMPT_CHARS:,} characters are read.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"The prompt file {file} is not UTF-8 text: save it as UTF-8.") from error
