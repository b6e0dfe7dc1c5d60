"""The request of a comparison and its checks, with a sentence for every refusal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Literal, Protocol

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ..errors import UserError, first_fault
from .settings import HIDDEN, OWN_PLACE, setting, settings_of

# The number formats, by the modules of decoding/engines/formats: this must not import torch.
FORMATS = tuple(
    sorted(module.name for module in iter_modules([str(Path(__file__).parents[1] / "engines" / "formats")]))
)
CHOICES = ("auto", *FORMATS)
DRAFT_CHOICES = (*CHOICES, "trial")
Rule = Literal["greedy", "coupling", "sampling"]

MAX_PROMPT_CHARS = 100_000
MAX_PICTURE_CHARS = 600_000  # a photograph of 768 pixels a side
LEAST_TEMPERATURE = 0.001  # above 0: with less, float32 logits overflow
MAX_NEW_TOKENS = 4096
MAX_LANES = 8
MAX_REPEATS = 50
ASK_FOR_LESS = "Choose fewer new tokens, lanes or repeats."  # where a run would take, or took, too long
DEFAULT_LANES = ("autoregressive", "static:5", "disco", "oracle")

RULES = {
    "greedy": "greedy: both models' first choices must agree",
    "coupling": "coupling: same noise for both models, so every lane writes the same text",
    "sampling": "sampling: speculative sampling; lanes may differ in text",
}
KINDS_OF_PROMPT = {
    "": "the pair's default",
    "ask": "a question to the model (chat template)",
    "continue": "a text to continue",
}


@dataclass(slots=True)
class CompareRequest:
    """One comparison: a prompt, a pair, some lanes. A new setting is one line here.

    The order is that of the endpoint's arguments: new ones come last. ``pair`` "" is the default one; ``target`` and
    ``draft`` replace it. ``rule``: greedy for temperature 0; coupling or sampling above it. ``chat``: the prompt is a
    message to the model, in its chat template, with ``system`` before it ("" is the template's own); False: a text
    to continue; None: the pair's default. ``dtype``: the number format of the target ("auto": the fastest here, in a
    trial), ``draft_dtype`` that of drafts; ``weights``: as ``dtype``, in older requests. ``picture``: a scene as
    text, read when the prompt is encoded.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    prompt: str = setting(
        "Prompt", "The text to continue, or the question.", max_chars=MAX_PROMPT_CHARS, row=0, tools=True
    )
    lanes: list[str] = setting(
        "Lanes",
        "Lanes, separated by commas, such as autoregressive,static:5,disco,costaware,oracle.",
        list(DEFAULT_LANES),
        low=1,
        high=MAX_LANES,
        max_chars=100,
        row=1,
        tools=True,
    )
    max_new_tokens: int = setting(
        "New tokens", "The token limit of each text.", 128, low=1, high=MAX_NEW_TOKENS, row=1, tools=True
    )
    pair: str = setting(
        "Pair of models", "The name of a pair, from the list of pairs; empty: the default pair.", "", row=4, tools=True
    )
    target: str = setting(
        "or your own target (folder or Hub id)",
        "A target to use instead of a pair: a folder or a Hub id. Needs --draft.",
        "",
        max_chars=400,
        row=4,
        endpoint=False,
    )
    draft: str = setting(
        "with this draft (folder or Hub id)",
        "The draft for --target: a folder or a Hub id.",
        "",
        max_chars=400,
        row=4,
        endpoint=False,
    )
    temperature: float = setting(
        "Temperature", "Sampling temperature; 0: greedy.", 0.0, high=5, slider=(0, 5, 0.05), row=2
    )
    rule: Rule = setting(
        "Acceptance rule",
        "When a guess is accepted: greedy, coupling or sampling.",
        "greedy",
        words=RULES,
        radio=True,
        row=2,
    )
    seed: int = setting("Seed", "Seed of the random numbers, above temperature 0.", 0, high=2**31 - 1, row=3)
    repeats: int = setting(
        "Timing repeats", "Timed runs of each lane.", 3, low=1, high=MAX_REPEATS, slider=(1, 9, 1), row=1, tools=True
    )
    top_k: int = setting(
        "Top-k",
        "Draw only from the k likeliest tokens; 0: off.",
        0,
        note="0: off",
        high=1_000_000,
        row=3,
        endpoint=False,
    )
    top_p: float = setting(
        "Top-p",
        "Draw only from the likeliest tokens whose probabilities sum to this; 1: off.",
        1.0,
        note="1: off",
        high=1,
        above=True,
        slider=(0.01, 1, 0.01),
        row=3,
        endpoint=False,
    )
    stop: list[str] = setting(
        "Stop strings",
        "A text that ends the output; may be repeated.",
        [],
        note="one per line",
        separator="\n",
        high=8,
        row=5,
        endpoint=False,
    )
    ignore_eos: bool = setting(
        "Continue after the end-of-text token", "Continue after the end-of-text token.", False, row=5, endpoint=False
    )
    chat: bool | None = setting(
        "Kind of prompt",
        "Ask the model, or continue the text. Default: the pair's own kind.",
        None,
        words=KINDS_OF_PROMPT,
        radio=True,
        row=6,
    )
    system: str = setting(
        "System message of a chat",
        "The system message of a chat; empty: the model's own.",
        "",
        note="empty: the model's own",
        max_chars=8_000,
        row=6,
    )
    weights: str = setting(
        "Weights",
        "The old name of --dtype, for older links and scripts.",
        "auto",
        row=HIDDEN,
        words=dict(zip(CHOICES, CHOICES)),
    )
    dtype: str = setting(
        "Number format",
        f"The number format of the target: {', '.join(CHOICES)}; auto: the fastest in a trial on this machine.",
        "auto",
        row=3,
        words=dict(zip(CHOICES, CHOICES)),
    )
    picture: str = setting(
        "Picture",
        "For a target that reads scenes: emoji, signs such as red-star or blue-7, and # with the number of an "
        "arrangement. For one that reads photographs: a data URL.",
        "",
        max_chars=MAX_PICTURE_CHARS,
        row=OWN_PLACE,
        tools=True,
    )
    draft_dtype: str = setting(
        "Drafts' number format",
        "The number format of the drafts; auto: as --dtype if that rounds nothing, else as trial, the fastest in one.",
        "auto",
        row=HIDDEN,
        words=dict(zip(DRAFT_CHOICES, DRAFT_CHOICES)),
    )


SETTINGS = settings_of(CompareRequest)


@dataclass(frozen=True, slots=True)
class Grant:
    """The limits of one visitor on a shared machine; ``max_total_tokens`` counts all lanes and repeats."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    max_prompt_chars: int = MAX_PROMPT_CHARS
    max_new_tokens: int = MAX_NEW_TOKENS
    max_total_tokens: int = MAX_NEW_TOKENS * MAX_LANES * MAX_REPEATS
    long_jobs: bool = True  # evaluations
    max_seconds: float = 4 * 3600.0  # of one run or evaluation, from its turn on


PUBLIC = Grant(max_prompt_chars=20_000, max_new_tokens=512, max_total_tokens=20_000, long_jobs=False, max_seconds=300.0)


def check_granted(request: CompareRequest, grant: Grant) -> None:
    """Raises UserError with a sentence if ``request`` exceeds ``grant``."""
    if len(request.prompt) > grant.max_prompt_chars:
        raise UserError(
            f"The prompt has {len(request.prompt):,} characters; here at most {grant.max_prompt_chars:,} are read."
        )
    check_length(request.max_new_tokens, grant)
    total = request.max_new_tokens * request.repeats * len(request.lanes)
    if total > grant.max_total_tokens:
        raise UserError(
            f"All lanes and repeats together would decode {total:,} tokens; here at most {grant.max_total_tokens:,}. "
            f"{ASK_FOR_LESS}"
        )


def check_length(max_new_tokens: int, grant: Grant) -> None:
    """Raises UserError for texts longer than ``grant`` allows."""
    if max_new_tokens > grant.max_new_tokens:
        raise UserError(f"{max_new_tokens:,} new tokens are too many: here at most {grant.max_new_tokens:,}.")


def read_request(values: Mapping[str, Any]) -> CompareRequest:
    """A checked request of values as people and programs write them (a form, arguments). Raises UserError."""
    return check_request(CompareRequest(**{name: SETTINGS[name].parse(value) for name, value in values.items()}))


def request_from_dict(data: Any) -> CompareRequest:
    """A checked request of what ``asdict`` made of one, elsewhere. Raises UserError."""
    try:
        request = _ADAPTER.validate_python(data)
    except (ValidationError, RecursionError) as error:
        raise UserError(f"These settings cannot be read: {first_fault(error)}") from error
    for name, value in data.items():
        if isinstance(value, bool):  # true was read as 1
            SETTINGS[name].check(value)
    return check_request(request)


def check_request(request: CompareRequest) -> CompareRequest:
    """Raises UserError with a sentence for a request that cannot run. Lane strings are checked when they are parsed."""
    if not request.lanes:
        raise UserError("No lane was chosen: pick at least one, for example autoregressive and static:5.")
    if isinstance(request.lanes, list) and len(request.lanes) > MAX_LANES:
        raise UserError(f"{len(request.lanes)} lanes are too many for one run: choose at most {MAX_LANES}.")
    for name, one in SETTINGS.items():
        one.check(getattr(request, name))
    if not request.prompt.strip():
        raise UserError("The prompt is empty: type a question for the model, or a text to continue.")
    if not all(map(is_whole_text, (request.prompt, request.system, *request.stop))):
        raise UserError("The prompt contains half of a character (a lone surrogate): paste the text again.")
    if "\x00" in request.prompt:
        raise UserError("The prompt contains NUL bytes, so it looks like a binary file: paste text instead.")
    if request.system and request.chat is False:
        raise UserError("A system message is part of a chat: ask the model (chat), or leave the message out.")
    if request.picture and request.chat is False:
        raise UserError("A picture is part of a chat: ask the model (chat), or leave the picture out.")
    if len({lane.strip() for lane in request.lanes}) < len(request.lanes):
        raise UserError("A lane was named twice: name each lane once.")
    if bool(request.target) != bool(request.draft):
        raise UserError(
            "Name both a target and a draft, or neither to use a pair by its name. Another draft of that pair is part "
            "of a lane: DRAFT/static:5."
        )
    if "" in request.stop:
        raise UserError("A stop string is empty: give at most 8 stop strings, none of them empty.")
    _check_sampling(request)
    check_format(request)
    return request


class _Formats(Protocol):
    dtype: str
    weights: str
    draft_dtype: str


def number_formats(settings: _Formats) -> tuple[str, str]:
    """The formats of target and drafts that settings ask for. ``weights`` is how older run files and links ask for
    four bits.
    """
    return settings.dtype if settings.weights == "auto" else settings.weights, settings.draft_dtype


def check_format(settings: _Formats) -> None:
    """Raises UserError for a format that does not exist, or for two that contradict each other."""
    for name in ("dtype", "weights", "draft_dtype"):
        SETTINGS[name].check(getattr(settings, name))
    if settings.weights not in ("auto", settings.dtype) and settings.dtype not in ("auto", "bfloat16"):
        raise UserError(f"Two number formats were named, {settings.dtype} and {settings.weights}: name one.")


def is_whole_text(value: object) -> bool:
    """Whether ``value`` is text that UTF-8 can hold, without half of a character, which JSON can write."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _check_sampling(request: CompareRequest) -> None:
    if 0 < request.temperature < LEAST_TEMPERATURE:
        raise UserError(f"The temperature must be 0 or at least {LEAST_TEMPERATURE}, not {request.temperature}.")
    if request.rule == "greedy" and request.temperature > 0:
        raise UserError("The greedy rule needs temperature 0: lower it, or choose the coupling or sampling rule.")
    if request.rule != "greedy" and request.temperature == 0:
        raise UserError(f"The {request.rule} rule needs a temperature above 0: raise it, or choose the greedy rule.")


_ADAPTER = TypeAdapter(CompareRequest)
