"""Lane strings: ``[draft/]policy[:argument]``, one at a time or as comma-separated lists with ranges.

``static:5`` · ``two-layers/static:5`` · ``ngram/static:10`` · ``confidence:0.4`` · ``oracle:best`` ·
``static:1..16`` · ``confidence:0.2..0.8/0.05``
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import UserError
from ..records.pairs import DRAFT_NAME
from .spec import PolicySpec, all_specs

MAX_EXPANDED = 400
STAND_IN = "confidence:0.4"  # replaces a learned lane if nothing was fitted

_NUMBER = r"-?\d+(?:\.\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:/({_NUMBER}))?")


@dataclass(frozen=True, slots=True)
class Lane:
    """One run of the prompt: its policy and its draft (None: the pair's default draft)."""

    text: str
    draft: str | None
    policy: str
    argument: str | None

    @property
    def spec(self) -> PolicySpec:
        """The spec of its policy."""
        return all_specs()[self.policy]

    @property
    def is_oracle(self) -> bool:
        """Whether its policy knows in advance where guesses fail."""
        return self.spec.foresees

    @property
    def is_plain(self) -> bool:
        """Whether this is plain autoregressive decoding, without a draft."""
        return self.spec.plain

    @property
    def is_learned(self) -> bool:
        """Whether its policy needs a head fitted for the draft."""
        return self.spec.learned

    @property
    def number(self) -> float | None:
        """The argument as a number; None if it is missing or a word (``best``, ``auto``)."""
        try:
            return float(self.argument) if self.argument is not None else None
        except ValueError:
            return None

    def draft_in(self, default: str) -> str | None:
        """The name of its draft where ``default`` is that of the default one; None for plain decoding."""
        return None if self.is_plain else self.draft or default


def parse_lane(text: str) -> Lane:
    """Reads one lane string. Raises UserError with a sentence that says what to write instead."""
    text = text.strip()
    head, colon, argument = text.partition(":")
    draft, slash, policy = head.rpartition("/")
    if policy not in all_specs():
        raise UserError(f"There is no policy '{_short(policy)}': choose one of {', '.join(all_specs())}.")
    if slash and not DRAFT_NAME.fullmatch(draft):
        raise UserError(f"'{_short(draft)}' cannot be the name of a draft: write for instance ngram/static:5.")
    if colon and not argument:
        raise UserError(f"Lane '{_short(text)}' ends with a colon: give a value after it or leave the colon out.")
    lane = Lane(text, draft or None, policy, argument or None)
    if lane.is_plain and draft:
        raise UserError(f"Plain decoding uses no draft: write just {policy}.")
    lane.spec.check(lane.argument)
    return lane


def check_certain(lane: Lane, draft: str) -> None:
    """Raises UserError for a lane whose policy decides by probabilities, which ``draft`` lacks."""
    if lane.spec.looks_at_guesses:
        others = [spec.name for spec in all_specs().values() if not (spec.plain or spec.looks_at_guesses)]
        raise UserError(
            f"The lane {lane.text} decides by the draft's probabilities, and {draft} has none: "
            f"use one of these policies with it: {', '.join(others)}."
        )


def stand_in(lane: Lane) -> str:
    """The lane that replaces a learned one for which nothing was fitted, with the same draft."""
    return f"{lane.draft}/{STAND_IN}" if lane.draft else STAND_IN


def spec_of(text: str) -> PolicySpec | None:
    """The spec of a recorded lane's policy; None if this version has no such policy."""
    return all_specs().get(re.split("[:#]", text)[0].rpartition("/")[2])


def is_usable(text: str) -> bool:
    """Whether this lane can be used in practice: it is neither plain decoding nor an oracle."""
    spec = spec_of(text)
    return spec is None or not (spec.plain or spec.foresees)


def expand_lanes(text: str) -> list[Lane]:
    """Reads a comma-separated list with ranges: ``static:1..16,confidence:0.2..0.8/0.05``.

    A range includes both ends; its default step is 1 between whole numbers and 0.05 otherwise.
    """
    lanes: list[Lane] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        lanes += [parse_lane(one) for one in _expand(part)]
        if len(lanes) > MAX_EXPANDED:
            raise UserError(f"These ranges make more than {MAX_EXPANDED} lanes: use a larger step.")
    if not lanes:
        raise UserError("No lane was named: write for instance autoregressive,static:5.")
    return list({lane.text: lane for lane in lanes}.values())


def _expand(part: str) -> list[str]:
    head, _, argument = part.partition(":")
    if ".." not in argument:
        return [part]
    match = _RANGE.fullmatch(argument)
    if not match:
        raise UserError(
            f"'{_short(part)}' is not a range: write for instance static:1..16 or confidence:0.2..0.8/0.05."
        )
    low, high = float(match[1]), float(match[2])
    whole = "." not in match[1] + match[2]
    step = float(match[3]) if match[3] else (1.0 if whole else 0.05)
    if step <= 0 or high < low:
        raise UserError(
            f"The range '{_short(part)}' is empty: its end must not be below its start, and its step must not be 0."
        )
    steps = (high - low) / step + 1e-6
    if not steps < MAX_EXPANDED:  # also those of numbers too large for a float
        raise UserError(f"The range '{_short(part)}' makes more than {MAX_EXPANDED} lanes: use a larger step.")
    return [f"{head}:{round(low + i * step, 6):g}" for i in range(int(steps) + 1)]


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
