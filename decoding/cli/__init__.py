"""``python -m decoding COMMAND``: each command is a function of its own name in a module of this package."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

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
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read by torch when it is first imported
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    from ..errors import UserError

    try:
        _application(arguments)(args=arguments, prog_name="python -m decoding")
    except UserError as error:
        from .console import print_error

        print_error(str(error))
        sys.exit(BAD_INPUT)
    except Exception as error:
        from ..errors import is_out_of_memory, sentence_of

        if not is_out_of_memory(error):
            raise  # a fault of the program: its traceback helps
        from .console import print_error

        print_error(sentence_of(error))
        sys.exit(FAILED)


def _application(arguments: Sequence[str]):
    """The typer application. Only the module of the requested command is imported, for a fast start."""
    import typer

    application = typer.Typer(
        help="See and measure speculative decoding.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    application.callback()(_root)
    asked = arguments[0] if arguments and arguments[0] in COMMANDS else None
    for name in [asked] if asked else COMMANDS:
        module = importlib.import_module(f".{COMMANDS[name]}", __package__)
        application.command(name)(getattr(module, name.replace("-", "_")))
    return application


def _root() -> None:
    """See and measure speculative decoding: static, dynamic and oracle lookahead side by side."""
