"""Colour and shape of a lane: the same in every run, on every tab and in every exported file.

The policy determines both; lanes of one policy with different arguments or drafts differ in shape, static ones, which
are often raced together, in the shade of their colour, too. Colours are names of CSS variables in ``core/base.css``.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from decoding.errors import UserError
from decoding.lookahead.lanes import parse_lane
from decoding.lookahead.specs import all_specs
from decoding.records.generate import TITLES, call_of

N_COLOURS = 14  # --sd-l0 to --sd-l13
STATIC_SHADES = ("-deep", "-pale", "-vivid", "-dull", "-dark")  # of --sd-l1
_SHADED = ("3", "8", "7", "2", "10")  # the SLs that are offered besides 5, each with a shade of its own
SYMBOLS = (  # Plotly's names; player.css draws the same ones
    "square",
    "circle",
    "triangle-up",
    "diamond",
    "triangle-down",
    "cross",
    "star",
    "hexagon",
    "x",
    "triangle-left",
    "triangle-right",
    "bowtie",
    "circle-open",
    "square-open",
    "diamond-open",
)
_POLICIES = (
    "autoregressive",
    "static",
    "disco",
    "oracle",
    "entropy",
    "heuristic",
    "confidence",
    "specdecpp",
    "costaware",
    "throughput",
    "bandit",
    "adaedl",
    "tree",
    "costtree",
)
_USUAL = (
    "static:5",
    "confidence:0.4",
    "specdecpp:auto",
    "tree:8",
)  # lanes whose argument does not change the policy's symbol


class LaneStyle(NamedTuple):
    """A lane's colour and symbol."""

    colour: str  # a CSS variable: "--sd-l1"
    symbol: str  # one of SYMBOLS

    @property
    def ink(self) -> str:
        """The colour for a figure; the page resolves it in the current theme."""
        return f"var({self.colour})"


def lane_style(text: str) -> LaneStyle:
    """Colour and symbol of the lane ``text``."""
    call = call_of(text)
    try:
        lane = parse_lane(text)
    except UserError:  # a run file may contain a policy of a later version
        if call is None:
            return LaneStyle("--sd-l0", SYMBOLS[-1])
        number, usual = list(TITLES).index(call.way), call.lane == call.way
    else:
        number = _number(lane.policy)
        usual = lane.draft is None and (lane.argument is None or text in _USUAL)
    variant = 0 if usual else _variant(text)
    shade = _shade(text, variant) if variant and text.rpartition("/")[2].startswith("static:") else ""
    return LaneStyle(f"--sd-l{number % N_COLOURS}{shade}", SYMBOLS[(number + variant) % len(SYMBOLS)])


def _shade(text: str, variant: int) -> str:
    sl = text.removeprefix("static:")
    return STATIC_SHADES[_SHADED.index(sl) if sl in _SHADED else variant % len(STATIC_SHADES)]


def _number(policy: str) -> int:
    others = [name for name in all_specs() if name not in _POLICIES]
    return (*_POLICIES, *others).index(policy) if policy in all_specs() else 0


def _variant(text: str) -> int:
    """An offset to another symbol, from 1 on; neighbouring SLs get different ones."""
    policy, _, argument = text.partition(":")
    if policy == "static" and argument.isdigit():
        return 1 + int(argument) % (len(SYMBOLS) - 1)
    return 1 + crc32(text.encode()) % (len(SYMBOLS) - 1)
