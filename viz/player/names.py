"""How a lane is shown on the page: its name, its one-line caption, its colour and shape.

Colour and shape are the same in every run, on every tab and in every exported file. The policy determines both. Lanes
of one policy with another draft differ in shape; those with another argument, too, static ones, which are often raced
together, also in the shade of their colour. No argument but an SL gives a lane the shape of one of the first four
policies, which the page races by default. Colours are names of CSS variables in ``core/base.css``.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

from decoding.errors import UserError
from decoding.lookahead.lanes import Lane, parse_lane
from decoding.lookahead.spec import all_specs
from decoding.records.generate import CAPTIONS, TITLES, call_of
from decoding.records.pairs import MODEL_FREE

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


def lane_name(text: str) -> str:
    """``two-layers/static:5`` -> ``Static 5 · two-layers``."""
    lane = _known(text)
    if lane is None:
        call = call_of(text)
        return call.name if call else text
    title = lane.spec.title + (f" {lane.argument}" if lane.argument else "")
    return f"{title} · {lane.draft}" if lane.draft else title


def lane_of_name(name: str) -> str:
    """``Static 5 · two-layers`` -> ``two-layers/static:5``: the inverse of :func:`lane_name`; other texts stay.

    The beginning of a single policy's title is enough (``Conf``): Enter in the list of lanes keeps what was typed.
    """
    policy, dot, draft = name.partition(" · ")
    for spec in all_specs().values():
        title, rest = policy[: len(spec.title)], policy[len(spec.title) :]
        if title.lower() == spec.title.lower() and rest[:1] in ("", " "):
            lane = f"{spec.name}:{rest.strip()}" if rest.strip() else spec.name
            return f"{draft}/{lane}" if dot else lane
    begun = [one.name for one in all_specs().values() if one.title.lower().startswith(policy.lower())]
    if len(policy) < 3 or len(begun) != 1:
        return name
    return f"{draft}/{begun[0]}" if dot else begun[0]


def policy_title(policy: str) -> str:
    """``specdecpp`` -> ``SpecDec++``; a policy that is unknown here keeps its own name."""
    spec = all_specs().get(policy)
    return spec.title if spec else policy


def lane_caption(text: str) -> str:
    """What the lane's policy does, for a newcomer."""
    lane = _known(text)
    if lane is None:
        call = call_of(text)
        return CAPTIONS[call.way] if call else "a policy that this version does not know"
    caption = lane.spec.describe(lane.argument)
    model_free = MODEL_FREE.get(lane.draft or "")
    return f"{caption}; {model_free.caption}" if model_free else caption


def _known(text: str) -> Lane | None:
    """The lane of a run file, which may be of another version; None if its policy is unknown here."""
    try:
        return parse_lane(text)
    except UserError:
        return None


def lane_heading(text: str) -> dict[str, Any]:
    """What the player shows of a lane before anything is decoded."""
    lane = _known(text)
    return {
        "lane": text,
        "policy": text if lane is None else lane.policy,
        "name": lane_name(text),
        "caption": lane_caption(text),
        "look": lane_style(text)._asdict(),
    }


# -- colour and shape


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
    shade = ""
    if lane := _known(text):
        number, variant = _number(lane.policy), _argument(lane.policy, lane.argument)
        if variant and lane.policy == "static":
            shade = _shade(lane.argument, variant)
        variant += 0 if lane.draft is None else _draft(lane.draft)
    elif call := call_of(text):
        number, variant = list(TITLES).index(call.way), 0 if call.lane == call.way else _place(text)
    else:
        return LaneStyle("--sd-l0", SYMBOLS[-1])
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
