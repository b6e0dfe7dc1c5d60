"""Colour and shape of a lane: the same in every run, on every tab and in every exported file.

The policy determines both. Lanes of one policy with another draft differ in shape; those with another argument, too,
static ones, which are often raced together, also in the shade of their colour. No argument but an SL gives a lane the
shape of one of the first four policies, which the page races by default. Colours are names of CSS variables in
``core/base.css``.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from decoding.errors import UserError
from decoding.lookahead.lanes import parse_lane
from decoding.lookahead.spec import all_specs
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
_DEFAULT = 4  # so many policies are raced by default
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
_USUAL = {  # arguments that do not change the policy's symbol
    "static": "5",
    "confidence": "0.4",
    "specdecpp": "auto",
    "tree": "8",
}
_DRAFTS = (  # of the shipped pairs, and those that any pair has; each with a symbol of its own
    "three-layers",
    "two-layers",
    "one-layer",
    "deep-narrow",
    "early-exit",
    "feature",
    "heads",
    "block",
    "captions",
    "seeing",
    "ngram",
)


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
        number, shade = list(TITLES).index(call.way), ""
        variant = 0 if call.lane == call.way else _place(text)
    else:
        number, variant = _number(lane.policy), _argument(lane.policy, lane.argument)
        shade = _shade(lane.argument, variant) if variant and lane.policy == "static" else ""
        variant += 0 if lane.draft is None else _draft(lane.draft)
    return LaneStyle(f"--sd-l{number % N_COLOURS}{shade}", SYMBOLS[(number + variant) % len(SYMBOLS)])


def _shade(sl: str | None, variant: int) -> str:
    return STATIC_SHADES[_SHADED.index(sl) if sl in _SHADED else (variant + 2) % len(STATIC_SHADES)]


def _number(policy: str) -> int:
    """The place of a known policy; one in a file of its own comes after those that are listed here."""
    return list(dict.fromkeys((*_POLICIES, *all_specs()))).index(policy)


def _argument(policy: str, argument: str | None) -> int:
    """The offset of a policy's argument to another symbol, 0 for the usual one; neighbouring SLs get different ones."""
    if argument is None or argument == _USUAL.get(policy):
        return 0
    if policy == "static":
        return 1 + int(argument) % (len(SYMBOLS) - 1)
    return _DEFAULT + crc32(argument.encode()) % (len(SYMBOLS) - _DEFAULT) - _number(policy)


def _draft(name: str) -> int:
    """The offset of a draft that is named, from 1 on."""
    return 1 + _DRAFTS.index(name) if name in _DRAFTS else _place(name)


def _place(text: str) -> int:
    return 1 + crc32(text.encode()) % (len(SYMBOLS) - 1)
