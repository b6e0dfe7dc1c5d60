"""Shared by the commands: consoles, progress, Ctrl-C, untrusted text, and options, as types of their parameters."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from inspect import Parameter
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from ..errors import UserError, explained
from ..records.request import SETTINGS
from ..records.settings import Setting, with_parameters

CANCELLED = 130
Tell = Callable[[str, float | None], None]  # shows a message and which share of the work is done, if it is known

out = Console(highlight=False, soft_wrap=False)
err = Console(stderr=True, highlight=False)


def print_error(sentence: str) -> None:
    """Prints an error on stderr; the sentence may contain a visitor's text."""
    err.print(Text.assemble(("Error: ", "bold red"), as_text(sentence)), soft_wrap=True)


def print_json(data: Any) -> None:
    """Prints one JSON document on stdout, without colours or wrapping."""
    sys.stdout.write(json.dumps(data, ensure_ascii=True, allow_nan=False, indent=1) + "\n")


def make_folder(folder: Path) -> None:
    """Before minutes of measuring: raises UserError if ``folder`` cannot be made, or nothing be written into it."""
    with explained(f"Cannot write into {folder}"):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"Cannot write into {folder}: it is a file. Name a folder; a new one is made.")
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()


def refuse_beside(context: typer.Context, deciding: str, *useful: str) -> None:
    """Raises UserError if the command has options that change nothing beside ``deciding``: any but the ``useful``."""
    written = (
        one.opts[0]
        for one in context.command.params
        if one.name and getattr(context.get_parameter_source(one.name), "name", "") == "COMMANDLINE"
    )
    if idle := [option for option in written if option not in (deciding, *useful, "--out", "--json")]:
        raise UserError(f"With {deciding}, {', '.join(idle)} would change nothing: leave one or the other out.")


def as_text(text: str, style: str = "") -> Text:
    """``text`` from anywhere, for the terminal: :func:`visible`, and nothing in it is rich's markup."""
    return Text(visible(text), style)


def visible(text: str) -> str:
    """``text`` made safe for the terminal: control characters become their visible symbols.

    Line feeds and tabs stay. Direction marks (bidi overrides) become U+FFFD.
    """
    return text.translate(_PICTURES)


_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_PICTURES |= dict.fromkeys([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)
_PICTURES |= dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)  # lone surrogates cannot be encoded


@contextmanager
def progress_bar(first_message: str) -> Iterator[Tell]:
    """A progress display on stderr, silent if that is no terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(first_message, total=None)

        def tell(message: str, fraction: float | None) -> None:
            total = None if fraction is None else 1.0
            bar.update(task, description=visible(message), completed=fraction or 0.0, total=total)

        yield tell


@contextmanager
def cancel_on_interrupt() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; a second one interrupts immediately."""
    cancel = threading.Event()

    def stop(number: int, frame: object) -> None:
        if cancel.is_set():
            raise KeyboardInterrupt
        cancel.set()
        err.print("Stopping after this step; press Ctrl-C again to leave immediately.")

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, before)


PairName = Annotated[str, typer.Option(help=SETTINGS["pair"].help)]
Target = Annotated[str, typer.Option(help=SETTINGS["target"].help)]
Draft = Annotated[str, typer.Option(help=SETTINGS["draft"].help)]
MaxNewTokens = Annotated[int, typer.Option(help=SETTINGS["max_new_tokens"].help)]
Repeats = Annotated[int, typer.Option(help=SETTINGS["repeats"].help)]
Dtype = Annotated[str, typer.Option(help=SETTINGS["dtype"].help)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON only.")]


def with_settings(command: Callable) -> Callable:
    """``command`` with an option for each setting of a comparison in place of its ``**settings``."""
    with_parameters(command, map(_option, SETTINGS.values()))
    return command


def with_evaluation_options(command: Callable) -> Callable:
    """``command`` with an option for each described field of an evaluation's options in place of its ``**options``."""
    from ..evaluation.options import EvaluationOptions

    hints = get_type_hints(EvaluationOptions, include_extras=True)
    shown = []
    for one in fields(EvaluationOptions):
        kind: Any
        kind, *notes = get_args(hints[one.name])
        help = next((note.description for note in notes if getattr(note, "description", None)), None)
        if help is not None:
            option = Annotated[kind, typer.Option(help=help)]
            shown.append(Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=option))
    with_parameters(command, shown)
    return command


def _option(setting: Setting) -> Parameter:
    kind: Any = {"whole": int, "number": float, "flag": bool}.get(setting.kind, str)
    names, default = [setting.option], setting.default
    if None in setting.choices.values() or default is True:
        kind, names = bool | None, [f"{setting.option}/--no-{setting.option[2:]}"]
    elif setting.kind == "list" and setting.separator == ",":
        default = ",".join(default)
    elif setting.kind == "list":
        kind, default = list[str], list(default)
    option = Annotated[kind, typer.Option(*names, help=setting.help)]
    return Parameter(setting.name, Parameter.KEYWORD_ONLY, default=default, annotation=option)
