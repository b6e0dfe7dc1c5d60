"""The form of the Race tab as plain values: filled in from a link, the browser's store or a run, and as a command line.

A form is a dict from the names of all settings to what its fields hold. External values (a link, the browser's store)
are checked one by one; invalid ones are left out and explained in a sentence.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from typing import Any

from decoding.pictures.photo import is_photo
from decoding.records.generate import is_recorded
from decoding.records.request import SETTINGS, CompareRequest, read_request
from decoding.records.settings import Setting
from decoding.records.trace import Run

from .player.names import lane_of_name

FormValues = dict[str, Any]


def form_of(request: CompareRequest) -> FormValues:
    """The form that makes ``request``, or one that asks for the same."""
    return _of_today({name: _in_form(one, getattr(request, name)) for name, one in SETTINGS.items()})


def _of_today(form: FormValues) -> FormValues:
    """``form`` with the number format in its one field, also where an older link or run names it as weights."""
    return form if form["weights"] == "auto" else {**form, "dtype": form["weights"], "weights": "auto"}


def _in_form(setting: Setting, value: Any) -> Any:
    """Lanes are a list there; what has a line each is a text."""
    return list(value) if setting.separator == "," and setting.kind == "list" else setting.written(value)


def request_of(form: FormValues) -> CompareRequest:
    """The request of this form. Raises UserError."""
    lanes = form["lanes"]
    named = [lane_of_name(str(lane).strip()) for lane in lanes] if isinstance(lanes, list) else lanes
    return read_request({**form, "lanes": named})


def read_form(
    values: Mapping[str, Any], base: FormValues, source: str, pairs: Collection[str] = ()
) -> tuple[FormValues, list[str]]:
    """``base`` updated with the valid ``values``, and a sentence for each invalid one.

    ``source`` names the origin of the values in the sentences, for instance "link". ``pairs`` are the names of the
    available pairs; if there are none, they are unknown here.
    """
    form, faults = dict(base), []
    for name, setting in SETTINGS.items():
        if name not in values:
            continue
        value = setting.parse(values[name])
        fault = setting.fault(value, form=True)
        if name == "pair" and not fault and pairs and value not in ("", *pairs):
            fault = f"must be one of {', '.join(pairs)}"
        if fault:
            faults.append(f"The {source}'s {name} was left out: it {fault}.")
        else:
            form[name] = _in_form(setting, value)
    return _of_today(form), faults


def form_of_run(run: Run, pairs: Collection[str] = ()) -> FormValues:
    """The form that repeats ``run``; fields that cannot show a setting keep their defaults."""
    asked = form_of(run.asked)
    if is_recorded(run):  # its lanes are calls of transformers' generate, which the page cannot make
        del asked["lanes"]
    return read_form(asked, form_of(CompareRequest("")), "run", pairs)[0]


def command_line(request: CompareRequest) -> str:
    """The command that repeats ``request`` in a terminal: its main settings (those of tools), and what is unusual.

    A photograph, which a run does not hold, is to be put in place of FILE.
    """
    words = ["python", "-m", "decoding", "compare"]
    for name, setting in SETTINGS.items():
        value = getattr(request, name)
        if value != setting.default or setting.tools:
            words += _options(setting, value)
    return " ".join(_quoted(word) for word in words)


def _options(setting: Setting, value: Any) -> list[str]:
    if setting is SETTINGS["picture"] and is_photo(value):
        return ["--image=FILE"]
    if value is None or (setting.kind == "text" and not value):
        return []
    if isinstance(value, bool):
        return [setting.option if value else f"--no-{setting.option[2:]}"]
    if setting.kind == "list" and setting.separator != ",":
        return [f"{setting.option}={one}" for one in value]
    return [f"{setting.option}={setting.written(value)}"]


def _quoted(word: str) -> str:
    """``word`` quoted for bash and zsh; one with unprintable characters, such as line breaks, survives copying."""
    if word.isprintable():
        return shlex.quote(word)
    unprintable = {one: f"\\U{ord(one):08x}" for one in word if not one.isprintable()}
    return f"$'{word.translate(str.maketrans(unprintable | _ESCAPES))}'"


_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", "'": "\\'"}
