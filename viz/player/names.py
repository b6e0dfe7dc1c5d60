"""The name and the one-line caption of a lane on the page."""

from __future__ import annotations

from typing import Any

from decoding.errors import UserError
from decoding.lookahead.lanes import Lane, parse_lane
from decoding.lookahead.spec import all_specs
from decoding.records.generate import CAPTIONS, call_of
from decoding.records.pairs import MODEL_FREE

from .lane_styles import lane_style


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
