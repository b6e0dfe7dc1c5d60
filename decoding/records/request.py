"""The request of a comparison and its checks, with a sentence for every refusal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from ..errors import UserError
from .number_formats import check_format

Rule = Literal["greedy", "coupling", "sampling"]

MAX_PROMPT_CHARS = 100_000
LEAST_TEMPERATURE = 0.001  # above 0: with less, float32 logits overflow
MAX_SYSTEM_CHARS = 8_000
MAX_NEW_TOKENS = 4096
MAX_LANES = 8
MAX_REPEATS = 50
DEFAULT_LANES = ("autoregressive", "static:5", "disco", "oracle")


@dataclass(slots=True)
class CompareRequest:
    """One comparison: a prompt, a pair, some lanes.

    ``pair`` names an embedded pair or a preset ("" is the default one); ``target`` and ``draft`` (a folder or a Hub id
    each) replace it. ``rule``: greedy for temperature 0; coupling or sampling above it. ``chat``: the prompt is a
    message to the model, in its chat template, with ``system`` before it ("" is the template's own); False: a text
    to continue; None: the pair's default. ``dtype``: the number format of the target ("auto": the fastest here, by
    trying); ``weights``: the same, in older requests.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARS)]
    pair: Annotated[str, Field(max_length=200)] = ""
    target: Annotated[str, Field(max_length=400)] = ""
    draft: Annotated[str, Field(max_length=400)] = ""
    lanes: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=16)] = field(
        default_factory=lambda: list(DEFAULT_LANES)
    )
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    rule: Rule = "greedy"
    seed: int = 0
    repeats: int = 3
    dtype: Annotated[str, Field(max_length=40)] = "auto"
    weights: Annotated[str, Field(max_length=40)] = "auto"
    stop: list[Annotated[str, Field(max_length=200)]] = field(default_factory=list)
    ignore_eos: bool = False
    chat: bool | None = None
    system: Annotated[str, Field(max_length=MAX_SYSTEM_CHARS)] = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """The limits of one visitor on a shared machine; ``max_total_tokens`` counts all lanes and repeats."""

    max_prompt_chars: int = MAX_PROMPT_CHARS
    max_new_tokens: int = MAX_NEW_TOKENS
    max_total_tokens: int = MAX_NEW_TOKENS * MAX_LANES * MAX_REPEATS
    long_jobs: bool = True  # evaluations
    max_seconds: float = 4 * 3600.0  # of one run or evaluation, from its turn on


PUBLIC = Grant(max_prompt_chars=20_000, max_new_tokens=512, max_total_tokens=20_000, long_jobs=False, max_seconds=300.0)


def check_granted(request: CompareRequest, grant: Grant) -> CompareRequest:
    """Raises UserError with a sentence if ``request`` exceeds ``grant``."""
    if len(request.prompt) > grant.max_prompt_chars:
        raise UserError(
            f"The prompt has {len(request.prompt):,} characters; here at most {grant.max_prompt_chars:,} are read."
        )
    if request.max_new_tokens > grant.max_new_tokens:
        raise UserError(f"{request.max_new_tokens:,} new tokens are too many: here at most {grant.max_new_tokens:,}.")
    total = request.max_new_tokens * request.repeats * len(request.lanes)
    if total > grant.max_total_tokens:
        raise UserError(
            f"All lanes and repeats together would decode {total:,} tokens; here at most {grant.max_total_tokens:,}: "
            "choose fewer new tokens, repeats or lanes."
        )
    return request


def check_long_job(grant: Grant) -> None:
    """Raises UserError with a sentence if ``grant`` allows no evaluations."""
    if not grant.long_jobs:
        raise UserError("Evaluations take minutes and this machine is shared: run them on your own machine.")


def request_from_dict(data: Any) -> CompareRequest:
    """A checked request from plain data (form, body or file). Raises UserError."""
    try:
        request = _ADAPTER.validate_python(data)
    except (ValidationError, RecursionError) as error:
        raise UserError(_explain(error)) from error
    return check_request(request)


def check_request(request: CompareRequest) -> CompareRequest:
    """Raises UserError with a sentence for a request that cannot run. Lane strings are checked when they are parsed."""
    if not request.prompt.strip():
        raise UserError("The prompt is empty: type a question for the model, or a text to continue.")
    if len(request.prompt) > MAX_PROMPT_CHARS:
        raise UserError(f"The prompt has {len(request.prompt):,} characters; at most {MAX_PROMPT_CHARS:,} are read.")
    if any(not _is_whole_text(text) for text in (request.prompt, request.system, *request.stop)):
        raise UserError("The prompt contains half of a character (a lone surrogate): paste the text again.")
    if "\x00" in request.prompt:
        raise UserError("The prompt contains NUL bytes, so it looks like a binary file: paste text instead.")
    if len(request.system) > MAX_SYSTEM_CHARS:
        raise UserError(f"The system message is too long: at most {MAX_SYSTEM_CHARS:,} characters are read.")
    if request.system and request.chat is False:
        raise UserError("A system message is part of a chat: ask the model (chat), or leave the message out.")
    if not request.lanes:
        raise UserError("No lane was chosen: pick at least one, for example autoregressive and static:5.")
    if len(request.lanes) > MAX_LANES:
        raise UserError(f"{len(request.lanes)} lanes are too many for one run: choose at most {MAX_LANES}.")
    if len(set(request.lanes)) < len(request.lanes):
        raise UserError("A lane was named twice: name each lane once.")
    if bool(request.target) != bool(request.draft):
        raise UserError(
            "Name both a target and a draft, or neither to use a pair by its name. Another draft of that pair is part "
            "of a lane: DRAFT/static:5."
        )
    _check_whole("max new tokens", request.max_new_tokens, 1, MAX_NEW_TOKENS)
    _check_whole("repeats", request.repeats, 1, MAX_REPEATS)
    _check_whole("the seed", request.seed, 0, 2**31 - 1)
    _check_whole("top-k", request.top_k, 0, 1_000_000)
    _check_sampling(request)
    check_format(request)
    if any(not stop for stop in request.stop) or len(request.stop) > 8:
        raise UserError("Give at most 8 stop strings, none of them empty.")
    return request


def _is_whole_text(text: str) -> bool:
    """Whether ``text`` can be encoded as UTF-8, as the run file and the tokenizer need."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _check_whole(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UserError(f"{name[0].upper()}{name[1:]} must be a whole number from {low:,} to {high:,}, not {value}.")


def _check_sampling(request: CompareRequest) -> None:
    if request.temperature != 0.0 and not LEAST_TEMPERATURE <= request.temperature <= 5.0:
        raise UserError(f"The temperature must be 0 or from {LEAST_TEMPERATURE} to 5, not {request.temperature}.")
    if not math.isfinite(request.top_p) or not 0.0 < request.top_p <= 1.0:
        raise UserError(f"Top-p must be a number above 0 and at most 1, not {request.top_p}.")
    if request.rule == "greedy" and request.temperature > 0:
        raise UserError("The greedy rule needs temperature 0: lower it, or choose the coupling or sampling rule.")
    if request.rule != "greedy" and request.temperature == 0:
        raise UserError(f"The {request.rule} rule needs a temperature above 0: raise it, or choose the greedy rule.")


def _explain(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return "These settings are nested too deeply to be read."
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the settings"
    return f"These settings cannot be read: at {where}: {first['msg']}."


_ADAPTER = TypeAdapter(CompareRequest)
