"""The options of an evaluation and their checks, with a sentence for every refusal."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from ..errors import UserError, first_fault
from ..lookahead.lanes import parse_lane
from ..lookahead.spec import evaluated_lanes
from ..records.request import SETTINGS, check_format
from ..records.suites import SPLITS, suite_names
from .results import STATIC_OPT, TREE_OPT

Short = Annotated[str, Field(max_length=200)]
ModelPath = Annotated[str, Field(max_length=400)]


def default_lanes() -> list[str]:
    """The lanes as which the policies are evaluated by default, and the tuned static SL."""
    lanes = evaluated_lanes()
    lanes.insert(1 + lanes.index("static:5"), STATIC_OPT)
    return lanes


def _setting(name: str) -> Any:
    """The help of a comparison's setting of that name."""
    return Field(description=SETTINGS[name].help)


@dataclass(slots=True)
class EvaluationOptions:
    """One evaluation; the command line offers each field with its description.

    ``clock_prompts`` of the test prompts also run on the clock, ``repeats`` times each. ``chain_minutes`` bounds the
    collecting of texts and chains, a third of it for validation; a second evaluation in the same folder continues with
    the prompts that did not fit. ``draft`` "" is the pair's default.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    pair: Annotated[Short, _setting("pair")] = ""
    target: Annotated[ModelPath, _setting("target")] = ""
    draft: Annotated[ModelPath, Field(description="With --target: its draft. Without: one of the pair's.")] = ""
    dtype: Annotated[Short, _setting("dtype")] = "auto"
    weights: Annotated[Short, _setting("weights")] = "auto"
    draft_dtype: Annotated[Short, _setting("draft_dtype")] = "auto"
    suite: Annotated[Short, Field(description="Suites, joined by commas (see `suites list`), all, or papers.")] = "all"
    split: Annotated[Short, Field(description="The reported split.")] = "test"
    limit: Annotated[
        int | None, Field(description="Number of prompts of the split, taken from the suites in turn; default: all.")
    ] = None
    validation_limit: Annotated[int | None, Field(description="Validation prompts; default: same as --limit.")] = None
    lanes: Annotated[list[Short], Field(max_length=64)] = field(default_factory=default_lanes)
    max_new_tokens: Annotated[int, _setting("max_new_tokens")] = 128
    clock_prompts: Annotated[int, Field(description="Number of prompts that are also timed.")] = 40
    repeats: Annotated[int, Field(description="Timed runs of each of them.")] = 2
    minutes: Annotated[float | None, Field(description="Stop timing after this many minutes.")] = 10.0
    chain_minutes: Annotated[float | None, Field(description="Minutes for collecting texts; default: no limit.")] = None
    drafts: Annotated[Short, Field(description="all: compare all drafts of the pair.")] = ""


_ADAPTER = TypeAdapter(EvaluationOptions)


def options_from_dict(data: dict[str, Any]) -> EvaluationOptions:
    """Options from a form or from another machine. Raises UserError."""
    try:
        return check_options(_ADAPTER.validate_json(json.dumps(data)))
    except TypeError as error:
        raise UserError("The options of an evaluation must be plain data: text, numbers and lists.") from error
    except ValidationError as error:
        raise UserError(f"These options of an evaluation are invalid: {first_fault(error)}") from error


def check_options(options: EvaluationOptions) -> EvaluationOptions:
    """Raises UserError with a sentence for options that cannot run."""
    suite_names(options.suite)
    if options.split not in SPLITS:
        raise UserError(f"There is no split '{options.split[:40]}': choose one of {', '.join(SPLITS)}.")
    check_format(options)
    if options.drafts not in ("", "all"):
        raise UserError("Drafts can be 'all', or be left out to evaluate the policies with one draft.")
    for name, value, low, high in (
        ("The limit", options.limit, 1, 100_000),
        ("The limit of validation prompts", options.validation_limit, 1, 100_000),
        ("The number of new tokens", options.max_new_tokens, 2, 4096),
        ("The number of clock prompts", options.clock_prompts, 0, 100_000),
        ("The number of repeats", options.repeats, 1, 50),
    ):
        if value is not None and not low <= value <= high:
            raise UserError(f"{name} must be a whole number from {low} to {high:,}, not {value}.")
    for minutes in (options.minutes, options.chain_minutes):
        check_minutes(minutes)
    if not options.lanes:
        raise UserError("No lane was named: leave the lanes out to evaluate all policies.")
    for lane in options.lanes:
        if lane not in (STATIC_OPT, TREE_OPT) and parse_lane(lane).draft:
            raise UserError(
                f"All lanes of an evaluation have its one draft: name that with --draft, and not in the lane {lane}."
            )
    return options


def check_minutes(minutes: float | None) -> None:
    """Raises UserError."""
    if minutes is not None and not 0.0 <= minutes <= 10_000:
        raise UserError(f"Minutes must be a number from 0 to 10000, not {minutes}.")
