"""Lessons as data: the format of a lesson file, its validation, and the lessons that ship in ``lessons/``.

A lesson is one JSON file that a teacher writes without code (``lessons/README.md`` describes the format). Its texts
name facts of the run on screen in braces, ``{best_sl}``; the browser fills them in, so that a lesson's sentences are
true for whichever run is shown.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from decoding.errors import UserError, first_fault
from decoding.lookahead.lanes import parse_lane

LESSONS = Path(__file__).resolve().parents[1] / "lessons"
MAX_BYTES = 200_000
LANE_WORDS = ("fast", "slow", "wrong", "plain")  # names for lanes that every run has

_FACT = re.compile(r"\{([^{}]*)\}")
_CONDITION = re.compile(r"([a-z_][a-z_0-9]*) (?:<|<=|>|>=|==) ([a-z_0-9]+|-?\d+(?:\.\d+)?)")


@cache
def known_facts() -> frozenset[str]:
    """The names that texts may use in braces: those in the table of the browser's script, which computes them."""
    source = (Path(__file__).parent / "learn" / "js" / "facts.js").read_text(encoding="utf-8")
    table = source[source.index("const FACTS = {") : source.index("};")]
    return frozenset(re.findall(r"(?:^|,)\s*([a-z_0-9]+): \[", table, re.MULTILINE))


def _with_known_facts(text: str) -> str:
    for name in _FACT.findall(text):
        if name not in known_facts():
            near = " or ".join(f"{{{one}}}" for one in get_close_matches(name, sorted(known_facts()), n=2))
            hint = f"did you mean {near}?" if near else "lessons/README.md says where all facts are listed"
            raise ValueError(f"there is no fact {{{name[:60]}}}; {hint}")
    return text


def _without_facts(text: str) -> str:
    """A list of lessons and of steps shows it without their runs."""
    if name := _FACT.search(text):
        raise ValueError(f"{name[0][:60]} is not filled in here, only in a step's texts, question and answers")
    return text


Identifier = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
Line = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(min_length=1, max_length=1200)]
Plain = AfterValidator(_without_facts)
Filled = Annotated[Text, AfterValidator(_with_known_facts)]
"""A text in which the browser fills in the facts in braces."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(_Strict):
    """``right``: true, false, or a comparison of facts ("best_sl > 5") that is evaluated for the run on screen."""

    text: Annotated[Line, AfterValidator(_with_known_facts)]
    right: bool | Annotated[str, Field(max_length=80)]
    why: Filled

    @field_validator("right")
    @classmethod
    def _is_condition(cls, right: bool | str) -> bool | str:
        if isinstance(right, bool):
            return right
        match = _CONDITION.fullmatch(right)
        names = [name for name in match.groups() if not re.fullmatch(r"-?\d+(?:\.\d+)?", name)] if match else [right]
        if not match or set(names) - known_facts():
            raise ValueError(f"“{right[:60]}” is not a comparison of facts such as best_sl > 5")
        return right


class Question(_Strict):
    """A question with two to six answers, of which at least one is or may be right."""

    text: Filled
    answers: Annotated[list[Answer], Field(min_length=2, max_length=6)]

    @model_validator(mode="after")
    def _has_a_right_one(self) -> Question:
        if not any(answer.right is True or isinstance(answer.right, str) for answer in self.answers):
            raise ValueError("no answer is right")
        return self


class Show(_Strict):
    """What is shown next to the text.

    steps: the clearest iteration of ``lane`` (a lane text, or one of LANE_WORDS) of the kind ``find``, at the step
    ``at`` (chance: the verdict on the guess of ``{p_first}``, ``{q_first}`` and ``{keep_first}``).
    whatif: the sliders at a ``preset``. calculator: with these values. lanes: all speedups as bars. checks: the
    cost of a pass over several tokens. picture: the picture in the prompt.
    """

    view: Literal["steps", "whatif", "calculator", "lanes", "checks", "picture"]
    lane: Annotated[str, Field(max_length=100)] = "static:5"
    find: Literal["rejection", "burst", "full", "short", "wasted", "second", "gained"] | None = None
    iteration: Annotated[int, Field(ge=0, le=8192)] = 0  # offset from the iteration found
    at: Literal["guess", "check", "verdict", "own", "rewind", "cost", "chance"] | None = None
    hide: bool = False
    preset: Literal["measured", "twice", "slow", "free", "costly"] = "measured"
    guess: Annotated[float, Field(ge=0, le=1e6)] = 1.0  # ms
    check: Annotated[float, Field(gt=0, le=1e6)] = 10.0  # ms
    sl: Annotated[int, Field(ge=0, le=1000)] = 4
    held: Annotated[float, Field(ge=0, le=1000)] = 3.0

    @field_validator("lane")
    @classmethod
    def _is_lane(cls, lane: str) -> str:
        if lane not in LANE_WORDS:
            try:
                parse_lane(lane)
            except UserError as error:
                raise ValueError(str(error)) from error
        return lane


class Step(_Strict):
    """One step of a lesson: its text, what is shown next to it, and when it counts as done."""

    title: Annotated[Line, Plain]
    text: Annotated[list[Filled], Field(min_length=1, max_length=8)]
    show: Show | None = None
    highlight: Annotated[list[Literal["text", "board", "costs", "numbers", "caption"]], Field(max_length=5)] = []
    question: Question | None = None
    recording: Identifier | None = None  # replaces the lesson's for this step
    needs: Annotated[list[Line], Field(max_length=8)] = []  # facts that the step needs; it says which are missing
    done: Literal["read", "answered", "stepped"] = "read"

    @model_validator(mode="after")
    def _can_be_done(self) -> Step:
        if self.done == "answered" and self.question is None:
            raise ValueError("done is “answered”, but the step has no question")
        if self.done == "stepped" and (self.show is None or self.show.view != "steps"):
            raise ValueError("done is “stepped”, but the step does not show the view “steps”")
        if unknown := set(self.needs) - known_facts():
            raise ValueError(f"it needs an unknown fact: {min(unknown)[:60]}")
        return self


class Lesson(_Strict):
    """``recording``: the id of the run that it speaks of; where that is not recorded, the run on screen serves.

    ``goals``: what a learner can do after it. ``path``: whether it belongs to the path that teachers are offered.
    """

    id: Identifier
    title: Annotated[Line, Plain]
    about: Annotated[Text, Plain]
    minutes: Annotated[int, Field(ge=1, le=240)]
    recording: Identifier
    goals: Annotated[list[Annotated[Line, Plain]], Field(max_length=6)] = []
    path: bool = False
    steps: Annotated[list[Step], Field(min_length=1, max_length=60)]


def read_lesson(text: Any) -> dict[str, Any]:
    """Validate a lesson file; returns it JSON-ready. Raises UserError with the first error and its location."""
    if not isinstance(text, str):
        raise UserError("This is not a lesson file: it is not a text.")
    content = text.encode("utf-8", "surrogatepass")
    if len(content) > MAX_BYTES:
        raise UserError(f"This lesson file is larger than {MAX_BYTES // 1000} kB, the limit.")
    try:
        return Lesson.model_validate_json(content).model_dump(exclude_none=True)
    except (ValidationError, RecursionError) as error:
        raise UserError(f"This is not a lesson file: {first_fault(error)}") from error


def recordings_of(lesson: dict[str, Any]) -> set[str]:
    """The ids of the recordings that a lesson and its steps name."""
    return {one["recording"] for one in (lesson, *lesson["steps"]) if "recording" in one}


def shipped_lessons(folder: Path = LESSONS) -> tuple[dict[str, Any], ...]:
    """The lessons in ``folder`` without broken ones, in the order of their file names, which begin with a number."""
    return _lessons_and_faults(folder)[0]


def lesson_faults(folder: Path = LESSONS) -> tuple[str, ...]:
    """A sentence for each file in ``folder`` that is no lesson; it names the file and the place of the fault."""
    return _lessons_and_faults(folder)[1]


@cache
def _lessons_and_faults(folder: Path) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    found, faults = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(read_lesson(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:  # UserError is a ValueError
            faults.append(f"The lesson {path.name} is left out. {error}")
    return tuple(found), tuple(faults)
