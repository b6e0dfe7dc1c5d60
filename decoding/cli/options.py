"""Options that several commands share, as types of their parameters, and those of a comparison's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter
from typing import Annotated, Any, get_args, get_type_hints

import typer

from ..records.request import SETTINGS
from ..records.settings import Setting, with_parameters

PairName = Annotated[str, typer.Option(help=SETTINGS["pair"].help)]
Target = Annotated[str, typer.Option(help=SETTINGS["target"].help)]
Draft = Annotated[str, typer.Option(help=SETTINGS["draft"].help)]
Lanes = Annotated[str, typer.Option(help=SETTINGS["lanes"].help)]
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
