"""Options that several commands share, as types of their parameters, and those of a comparison's settings."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter
from typing import Annotated, Any

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
Weights = Annotated[str, typer.Option(help=SETTINGS["weights"].help)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON only.")]


def with_settings(command: Callable) -> Callable:
    """``command`` with an option for each setting of a comparison in place of its ``**settings``."""
    with_parameters(command, map(_option, SETTINGS.values()))
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
