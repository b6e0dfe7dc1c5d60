"""``python -m decoding COMMAND``: each command is a function of its own name in a module of this package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from io import TextIOWrapper

import typer

from ..errors import UserError, is_out_of_memory, sentence_of
from .console import print_error

COMMANDS = {  # command: its module
    "compare": "compare",
    "show": "show",
    "whatif": "whatif",
    "pairs": "lists",
    "policies": "lists",
    "evaluate": "evaluate",
    "fit": "fit",
    "bench": "bench",
    "lossless": "bench",
    "recordings": "recordings",
    "suites": "lists",
    "serve": "serve",
    "gpu-day": "bench",
}
BAD_INPUT = 2
FAILED = 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command. Bad input gives a sentence on stderr and exit status 2; lack of memory status 1."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no such character shows a question mark
    try:
        _application(arguments)(args=arguments, prog_name="python -m decoding")
    except Exception as error:
        is_input = isinstance(error, UserError)
        if not (is_input or is_out_of_memory(error)):
            raise  # a fault of the program: its traceback helps
        print_error(sentence_of(error))
        sys.exit(BAD_INPUT if is_input else FAILED)


def _application(arguments: Sequence[str]) -> typer.Typer:
    """The typer application. Only the module of the requested command is imported, for a fast start."""
    application = typer.Typer(
        help="See and measure speculative decoding.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    application.callback()(lambda: None)  # else a single command would not need its name
    asked = arguments[0] if arguments and arguments[0] in COMMANDS else None
    for name in [asked] if asked else COMMANDS:
        module = importlib.import_module(f".{COMMANDS[name]}", __package__)
        application.command(name)(getattr(module, name.replace("-", "_")))
    return application
