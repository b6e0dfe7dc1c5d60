"""The form of the Race tab, and its two other shapes: a link and a command line.

``Settings`` is the form's content; Run turns it into a :class:`CompareRequest`. External values (a link, the browser's
store) are checked field by field; invalid ones are left out and explained in a sentence.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any
from urllib.parse import urlencode

from decoding.errors import UserError
from decoding.records.request import (
    DEFAULT_LANES,
    MAX_LANES,
    MAX_NEW_TOKENS,
    MAX_PROMPT_CHARS,
    MAX_REPEATS,
    MAX_SYSTEM_CHARS,
    CompareRequest,
    check_request,
)
from decoding.records.trace import Run

from .player.names import lane_of_name

RULES = ("greedy", "coupling", "sampling")
DTYPES = ("auto", "float32", "bfloat16")
WEIGHTS = ("auto", "int4")
CHAT = {"": None, "ask": True, "continue": False}  # the pair's default; with the chat template; as plain text
MAX_TEMPERATURE = 2.0  # of the form; the command line accepts more
MAX_FORM_REPEATS = min(9, MAX_REPEATS)
MIN_TOP_P = 0.01
MAX_PAIR_CHARS = 200
MAX_LINK_CHARS = 6000  # some servers cut longer links; the prompt is then left out


@dataclass(slots=True)
class Settings:
    """The form's values, in the order of its fields."""

    prompt: str = ""
    lanes: list[str] = field(default_factory=lambda: list(DEFAULT_LANES))
    max_new_tokens: int = 128
    pair: str = ""
    temperature: float = 0.0
    rule: str = "greedy"
    seed: int = 0
    repeats: int = 3
    top_k: int = 0
    top_p: float = 1.0
    dtype: str = "auto"
    weights: str = "auto"
    stop: str = ""  # one stop string per line
    ignore_eos: bool = False
    target: str = ""
    draft: str = ""
    chat: str = ""  # a key of CHAT
    system: str = ""

    def request(self) -> CompareRequest:
        """The request of this form. Raises UserError."""
        values = asdict(self)
        values["lanes"] = [lane_of_name(lane.strip()) for lane in self.lanes or [] if str(lane).strip()]
        values["stop"] = [line for line in (self.stop or "").split("\n") if line]
        for name in ("max_new_tokens", "seed", "repeats", "top_k"):
            values[name] = _whole(name, values[name])
        values["chat"] = CHAT.get(self.chat)
        return check_request(CompareRequest(**values))


FIELDS = tuple(one.name for one in fields(Settings))


def settings_of(request: CompareRequest) -> Settings:
    """The form's values that produce ``request``."""
    values = {name: getattr(request, name) for name in FIELDS if name not in ("lanes", "stop", "chat")}
    chat = next(name for name, value in CHAT.items() if value is request.chat)
    return Settings(lanes=list(request.lanes), stop="\n".join(request.stop), chat=chat, **values)


def read_settings(
    values: Mapping[str, Any], base: Settings, source: str, pairs: Iterable[str] = ()
) -> tuple[Settings, list[str]]:
    """``base`` updated with the valid ``values``, and a sentence for each invalid one.

    ``source`` names the origin of the values in the sentences, for instance "link". ``pairs`` are the names of the
    available pairs; if there are none, they are unknown here.
    """
    settings, faults = Settings(**asdict(base)), []
    names = list(pairs)
    readers = {**_READERS, "pair": _one_of(["", *names]) if names else _text(MAX_PAIR_CHARS)}
    for name in FIELDS:
        if name not in values:
            continue
        try:
            setattr(settings, name, readers[name](values[name]))
        except (ValueError, TypeError) as error:
            faults.append(f"The {source}'s {name} was left out: {error}.")
    return settings, faults


def link_query(request: CompareRequest) -> str:
    """The query of a link that restores all settings of ``request``, regardless of the visitor's own."""
    query = {}
    for name, value in asdict(settings_of(request)).items():
        if value != "":
            query[name] = ",".join(value) if name == "lanes" else int(value) if isinstance(value, bool) else value
    text = urlencode(query)
    if len(text) > MAX_LINK_CHARS:
        query.pop("prompt", None)
        text = urlencode(query)
    return text


def asked(run: Run) -> CompareRequest:
    """The request of ``run`` with its pair named explicitly, since the default pair may differ elsewhere."""
    request = run.settings
    return request if request.pair or request.target else replace(request, pair=run.pair.name)


def command_line(request: CompareRequest) -> str:
    """The command that repeats ``request`` in a terminal."""
    default = CompareRequest(prompt="")
    words = ["python", "-m", "decoding", "compare", f"--prompt={request.prompt}"]
    words += [f"--lanes={','.join(request.lanes)}", f"--max-new-tokens={request.max_new_tokens}"]
    words.append(f"--repeats={request.repeats}")
    for name in ("pair", "target", "draft", "temperature", "top_k", "top_p", "rule", "seed", "dtype", "weights"):
        value = getattr(request, name)
        if value != getattr(default, name):
            words.append(f"--{name.replace('_', '-')}={value}")
    words += [f"--stop={stop}" for stop in request.stop]
    if request.ignore_eos:
        words.append("--ignore-eos")
    if request.chat is not None:
        words.append("--chat" if request.chat else "--no-chat")
    if request.system:
        words.append(f"--system={request.system}")
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    """``word`` quoted for bash and zsh; unprintable characters, such as line breaks, are written as $'...' to survive
    copying.
    """
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", "'": "\\'"}


def _whole(name: str, value: Any) -> int:
    label = name.replace("_", " ").capitalize()
    if value is None:
        raise UserError(f"{label} is empty: fill in a whole number.")
    if isinstance(value, bool) or not float(value).is_integer():
        raise UserError(f"{label} must be a whole number, not {value}.")
    return int(value)


def _text(limit: int) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("it is not text")
        if len(value) > limit:
            raise ValueError(f"it has {len(value):,} characters, more than the limit of {limit:,}")
        return value

    return read


def _number(low: float, high: float, whole: bool) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if isinstance(value, bool) or len(str(value)) > 40:
            raise ValueError("it is not a number")
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError("it is not a number") from None
        if not math.isfinite(number) or not low <= number <= high or (whole and not number.is_integer()):
            raise ValueError(f"it must be a {'whole ' if whole else ''}number from {low:,} to {high:,}")
        return int(number) if whole else number

    return read


def _one_of(choices: Sequence[str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"it must be one of {', '.join(choice for choice in choices if choice)}")
        return value

    return read


def _lanes(value: Any) -> list[str]:
    lanes = value.split(",") if isinstance(value, str) else value
    if not isinstance(lanes, list) or not all(isinstance(lane, str) and len(lane) <= 100 for lane in lanes):
        raise ValueError("it must be lane names with commas between them")
    lanes = list(dict.fromkeys(lane.strip() for lane in lanes if lane.strip()))
    if not 1 <= len(lanes) <= MAX_LANES:
        raise ValueError(f"it must name from 1 to {MAX_LANES} lanes")
    return lanes


def _flag(value: Any) -> bool:
    if str(value).lower() not in ("0", "1", "true", "false"):
        raise ValueError("it must be 0 or 1")
    return str(value).lower() in ("1", "true")


_READERS: dict[str, Callable[[Any], Any]] = {
    "prompt": _text(MAX_PROMPT_CHARS),
    "lanes": _lanes,
    "max_new_tokens": _number(1, MAX_NEW_TOKENS, whole=True),
    "temperature": _number(0, MAX_TEMPERATURE, whole=False),
    "rule": _one_of(RULES),
    "seed": _number(0, 2**31 - 1, whole=True),
    "repeats": _number(1, MAX_FORM_REPEATS, whole=True),
    "top_k": _number(0, 1_000_000, whole=True),
    "top_p": _number(MIN_TOP_P, 1, whole=False),
    "dtype": _one_of(DTYPES),
    "weights": _one_of(WEIGHTS),
    "stop": _text(2000),
    "ignore_eos": _flag,
    "target": _text(400),
    "draft": _text(400),
    "chat": _one_of(tuple(CHAT)),
    "system": _text(MAX_SYSTEM_CHARS),
}
