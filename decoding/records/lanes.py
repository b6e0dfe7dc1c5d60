"""Lane strings: ``[draft/]policy[:argument]``, one at a time or as comma-separated lists with ranges.

``static:5`` · ``wide-1x384/static:5`` · ``ngram/static:10`` · ``confidence:0.4`` · ``oracle:best`` ·
``static:1..16`` · ``confidence:0.2..0.8/0.05``
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import UserError

SL_CAP = 20  # of static policies and those whose source says so
SL_CAP_LEARNED = 64  # the most that fitting may choose as SL_max of a learned policy
POLICIES = (
    "autoregressive",
    "static",
    "heuristic",
    "confidence",
    "entropy",
    "oracle",
    "disco",
    "specdecpp",
    "costaware",
)
LEARNED = ("disco", "specdecpp", "costaware")
THRESHOLDED = ("confidence", "entropy", "disco", "specdecpp")
MAX_EXPANDED = 400

_DRAFT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_NUMBER = r"-?\d+(?:\.\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:/({_NUMBER}))?")


@dataclass(frozen=True, slots=True)
class Lane:
    """One run of the prompt: under which policy, with which draft (None: the pair's default one)."""

    text: str
    draft: str | None
    policy: str
    argument: str | None

    @property
    def is_oracle(self) -> bool:
        return self.policy == "oracle"

    @property
    def is_plain(self) -> bool:
        """Plain autoregressive decoding: no draft at all."""
        return self.policy == "autoregressive"

    @property
    def number(self) -> float | None:
        """The argument as a number; None where there is none or it is a word (``best``, ``auto``)."""
        try:
            return float(self.argument) if self.argument is not None else None
        except ValueError:
            return None


def parse_lane(text: str) -> Lane:
    """Read one lane string. Raises UserError with a sentence that says what to write instead."""
    text = text.strip()
    head, colon, argument = text.partition(":")
    draft, slash, policy = head.rpartition("/")
    if policy not in POLICIES:
        raise UserError(f"There is no policy '{_short(policy)}': choose one of {', '.join(POLICIES)}.")
    if slash and not _DRAFT.fullmatch(draft):
        raise UserError(f"'{_short(draft)}' cannot be the name of a draft: write for instance ngram/static:5.")
    if colon and not argument:
        raise UserError(f"Lane '{_short(text)}' ends with a colon: give a value after it or leave the colon out.")
    lane = Lane(text, draft or None, policy, argument or None)
    _check_argument(lane)
    return lane


def expand_lanes(text: str) -> list[Lane]:
    """Read a comma-separated list, ranges included: ``static:1..16,confidence:0.2..0.8/0.05``.

    A range holds both of its ends; its step is 1 between whole numbers and 0.05 otherwise, unless given.
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
            f"The range '{_short(part)}' is empty: its end must not lie below its start, its step not at 0."
        )
    count = int((high - low) / step + 1e-6) + 1
    if count > MAX_EXPANDED:
        raise UserError(f"The range '{_short(part)}' makes {count} lanes, more than {MAX_EXPANDED}: use a larger step.")
    return [f"{head}:{round(low + i * step, 6):g}" for i in range(count)]


def _check_argument(lane: Lane) -> None:
    policy, argument, number = lane.policy, lane.argument, lane.number
    if policy == "autoregressive" and (argument or lane.draft):
        raise UserError("Plain decoding uses no draft and no value: write just autoregressive.")
    if policy == "static":
        _check_static(lane)
    if policy in ("heuristic", "costaware") and argument:
        raise UserError(f"The policy {policy} takes no value: write just {policy}.")
    is_auto = policy == "specdecpp" and argument == "auto"
    if policy in THRESHOLDED and argument and not is_auto and not _within(number, 0.0, 1.0):
        raise UserError(f"The threshold of {policy} must be from 0 to 1, not '{_short(argument)}'.")
    if policy == "oracle" and argument not in (None, "best") and not _is_whole(argument, 1, 10_000):
        raise UserError(f"'{_short(lane.text)}': give the oracle a cap (oracle:20), the word best, or nothing.")


def _check_static(lane: Lane) -> None:
    if lane.argument == "0":
        raise UserError("static:0 never drafts, which is plain decoding: use the lane autoregressive instead.")
    if not lane.argument:
        raise UserError("A static lane needs its SL: write for instance static:5.")
    if not _is_whole(lane.argument, 1, SL_CAP):
        raise UserError(f"{_short(lane.text)}: the SL must be a whole number from 1 to {SL_CAP}.")


def _is_whole(text: str, low: int, high: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 9 and low <= int(text) <= high


def _within(number: float | None, low: float, high: float) -> bool:
    return number is not None and low <= number <= high  # NaN is refused: it compares false


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
