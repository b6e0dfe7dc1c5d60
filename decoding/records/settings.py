"""What one setting of a comparison is: the form, links, the command line, the endpoint and tools are made from it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..errors import UserError

Kind = Literal["text", "whole", "number", "flag", "choice", "list"]
HIDDEN = -1  # a row that the form does not show
OWN_PLACE = -2  # no row: the form has a place of its own for it
SHOWN_CHARS = 40  # of a wrong value, in a sentence


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of :class:`~decoding.records.request.CompareRequest`; see :func:`setting`."""

    label: str
    help: str
    name: str = ""
    kind: Kind = "text"
    default: Any = None
    note: str = ""
    low: float = 0
    high: float = math.inf
    above: bool = False
    max_chars: int = 200
    separator: str = ","
    choices: Mapping[str, Any] = field(default_factory=dict)  # as it is written -> the request's value
    words: Mapping[str, str] = field(default_factory=dict)
    slider: tuple[float, float, float] | None = None
    row: int = 7
    radio: bool = False
    endpoint: bool = True
    tools: bool = False

    @property
    def option(self) -> str:
        """Its name on the command line, with the dashes."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def bounds(self) -> str:
        """Of a number, for sentences."""
        low, high = f"{self.low:,}", f"{self.high:,}"
        return f"above {low} and at most {high}" if self.above else f"from {low} to {high}"

    def fault(self, value: Any, form: bool = False) -> str:
        """What is wrong with ``value`` in a request, as the end of a sentence; "" if nothing is.

        ``form``: with the bounds of the form's slider, where it has one.
        """
        if form and self.slider:
            low, high, _ = self.slider
            return replace(self, low=low, high=high, above=False).fault(value)
        if self.kind in ("whole", "number"):
            return self._fault_of_number(value)
        if self.kind == "list":
            return self._fault_of_list(value)
        if self.kind == "choice":
            named = ", ".join(name for name in self.choices if name)
            return "" if self._name_of(value) is not None else f"must be one of {named}"
        if self.kind == "flag":
            return "" if isinstance(value, bool) else "must be 0 or 1"
        if not isinstance(value, str):
            return "must be text"
        too_long = f"has {len(value):,} characters: at most {self.max_chars:,} are read"
        return too_long if len(value) > self.max_chars else ""

    def _fault_of_number(self, value: Any) -> str:
        whole = self.kind == "whole"
        is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if is_number and self.low <= value <= self.high and not (self.above and value == self.low):  # false for NaN
            return ""
        return f"must be a {'whole ' if whole else ''}number {self.bounds}"

    def _fault_of_list(self, value: Any) -> str:
        if not _are_texts(value) or any(len(one) > self.max_chars for one in value):
            return f"must be a list of texts of at most {self.max_chars} characters each"
        return "" if self.low <= len(value) <= self.high else f"must have from {self.low} to {self.high} entries"

    def check(self, value: Any) -> None:
        """Raises UserError with a sentence if a request cannot have ``value``."""
        fault = self.fault(value)
        if fault and self.kind not in ("text", "list"):
            fault += ": it is empty" if value is None else f", not {_short(value)}"
        if fault:
            raise UserError(f"{self.name.replace('_', ' ').capitalize()} {fault}.")

    def parse(self, value: Any) -> Any:
        """The request's value for one from a form, a link or a program. What cannot be converted stays as it is: the
        check finds it.
        """
        if self.kind == "choice":
            return self.choices.get(value, value) if isinstance(value, str) else value
        if self.kind == "flag":
            return {"0": False, "false": False, "1": True, "true": True}.get(str(value)[:6].lower(), value)
        if self.kind == "list":
            parts = value.split(self.separator) if isinstance(value, str) else value
            return self._tidied(parts) if _are_texts(parts) else value
        return value if self.kind == "text" else self._parse_number(value)

    def _tidied(self, parts: Iterable[str]) -> list[str]:
        """``parts`` without empty ones; names between commas also without spaces around them, and each once."""
        named = dict.fromkeys(part.strip() for part in parts) if self.separator == "," else parts
        return [part for part in named if part]

    def _parse_number(self, value: Any) -> Any:
        if isinstance(value, bool) or len(str(value)) > SHOWN_CHARS:
            return value
        try:
            number = float(value)
        except (TypeError, ValueError):
            return value
        return int(number) if self.kind == "whole" and number.is_integer() else number

    def written(self, value: Any) -> Any:
        """A request's ``value`` as form, link and endpoint hold it; :meth:`parse` reverses it."""
        if self.kind == "choice":
            return self._name_of(value)
        return self.separator.join(value) if self.kind == "list" else value

    def _name_of(self, value: Any) -> str | None:
        """As which of the choices ``value`` is written; None if it is none of them."""
        same = (name for name, one in self.choices.items() if type(one) is type(value) and one == value)
        return next(same, None)


def setting(label: str, help: str, default: Any = MISSING, **more: Any) -> Any:
    """A dataclass field that is a setting; its annotation says of which kind it is.

    Args:
        label: its name in the form and in sentences; ``note`` follows it in the form.
        help: what it does, for the command line and for language models.
        low, high: bounds of a number, or of the length of a list; ``max_chars``: of a text, or of each in a list.
        above: ``low`` itself is refused.
        words: for a choice, what the form shows for each value; of ``bool | None``: for None, True, False.
        slider: (low, high, step) in the form, and the bounds of what a link may contain.
        row: where in the form, HIDDEN for nowhere, OWN_PLACE for elsewhere; radio: as buttons instead of a list.
        endpoint: whether programs may give it (and with it the backend that is a Space); tools: language models, too.
    """
    one = {"default_factory": default.copy} if isinstance(default, list) else {"default": default}
    return field(**one, metadata={"setting": Setting(label, help, **more)})


def settings_of(request: type) -> dict[str, Setting]:
    """The settings of a request's class by name, in order."""
    hints = get_type_hints(request)
    return {one.name: _completed(one, hints[one.name]) for one in fields(request)}


def _completed(one: Any, hint: Any) -> Setting:
    """The setting of a dataclass's field, with name, kind and default."""
    known: Setting = one.metadata["setting"]
    default = one.default if one.default_factory is MISSING else one.default_factory()
    known = replace(known, name=one.name, default="" if default is MISSING else default)
    names = get_args(hint) if get_origin(hint) is Literal else known.words if hint is str else ()
    if names:
        return replace(known, kind="choice", choices={name: name for name in names})
    if NoneType in get_args(hint):
        return replace(known, kind="choice", choices=dict(zip(known.words, (None, True, False))))
    if get_origin(hint) is list:
        return replace(known, kind="list")
    kinds: dict[type, Kind] = {str: "text", bool: "flag", int: "whole", float: "number"}
    return replace(known, kind=kinds[hint])


def with_parameters(function: Callable, parameters: Iterable[inspect.Parameter]) -> None:
    """Shows libraries that read signatures ``parameters`` in place of the ``*args`` or ``**kwargs`` of ``function``."""
    own = inspect.signature(function, eval_str=True)
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    shown = [*(one for one in own.parameters.values() if one.kind not in variable), *parameters]
    function.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in shown} | {"return": own.return_annotation}


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _short(value: Any) -> str:
    text = str(value).removesuffix(".0") if isinstance(value, float) else str(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
