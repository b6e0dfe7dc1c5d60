"""What an evaluation may be asked, and the sentences that answer what it may not."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import UserError
from ..lanes import parse_lane
from ..prompts import SPLITS, SUITES
from .tables import STATIC_OPT

RULES = (
    "autoregressive",
    "heuristic",
    "confidence:0.4",
    "static:5",
    STATIC_OPT,
    "entropy",
    "disco",
    "specdecpp",
    "costaware",
    "oracle",
    "oracle:best",
)


@dataclass(slots=True)
class EvaluationOptions:
    """One evaluation.

    ``limit``: test prompts in all, suites taking turns (None: all of them); ``validation_limit`` likewise for those
    on which static-opt is tuned. ``clock_prompts``: how many of the test prompts also run on the clock, ``repeats``
    times each, until ``minutes`` are over (None: without end). ``drafts``: "" evaluates the rules with one draft
    (``draft_name``, "" being the pair's default), "all" every draft of the pair.
    """

    pair: str = ""
    target: str = ""
    draft: str = ""
    dtype: str = "auto"
    suite: str = "all"
    split: str = "test"
    limit: int | None = None
    validation_limit: int | None = None
    lanes: list[str] = field(default_factory=lambda: list(RULES))
    max_new_tokens: int = 128
    clock_prompts: int = 40
    repeats: int = 2
    minutes: float | None = 10.0
    draft_name: str = ""
    drafts: str = ""


def options_from_dict(data: dict[str, Any]) -> EvaluationOptions:
    """Options that came from a form or over a wire. Raises UserError."""
    known = {one.name for one in fields(EvaluationOptions)}
    for name in data:
        if name not in known:
            raise UserError(f"An evaluation has no option '{str(name)[:40]}'.")
    return check_options(EvaluationOptions(**data))


def check_options(options: EvaluationOptions) -> EvaluationOptions:
    """Refuse what cannot run, with a sentence (UserError)."""
    if options.suite not in (*SUITES, "all"):
        raise UserError(f"There is no suite '{options.suite[:40]}': choose one of {', '.join(SUITES)}, all.")
    if options.split not in SPLITS:
        raise UserError(f"There is no split '{options.split[:40]}': choose one of {', '.join(SPLITS)}.")
    if options.drafts not in ("", "all"):
        raise UserError("Drafts can be 'all', or be left out to evaluate the rules with one draft.")
    _check_count("The limit", options.limit, 1, 100_000, optional=True)
    _check_count("The limit of validation prompts", options.validation_limit, 1, 100_000, optional=True)
    _check_count("The number of new tokens", options.max_new_tokens, 2, 4096)
    _check_count("The number of clock prompts", options.clock_prompts, 0, 100_000)
    _check_count("The number of repeats", options.repeats, 1, 50)
    if options.minutes is not None and not 0.0 <= options.minutes <= 10_000:
        raise UserError(f"The minutes on the clock must be a number from 0 to 10000, not {options.minutes}.")
    if not options.lanes:
        raise UserError("No lane was named: leave the lanes out to evaluate all rules.")
    for lane in options.lanes:
        if lane != STATIC_OPT:
            parse_lane(lane)
    return options


def _check_count(name: str, value: int | None, low: int, high: int, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UserError(f"{name} must be a whole number from {low} to {high:,}, not {value}.")
