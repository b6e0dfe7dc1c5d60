"""The form's choices: the available lanes, pairs and examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from decoding.backends.recorded import RecordedBackend
from decoding.errors import UserError
from decoding.lookahead.lanes import STAND_IN
from decoding.lookahead.specs import learned_policies, offered_lanes
from decoding.records.model_free import PROMPT_LOOKUP
from decoding.records.pairs import PairDescription
from decoding.records.request import DEFAULT_LANES
from decoding.records.suites import load_showcase

from .player.names import lane_name

NGRAM_LANE = f"{PROMPT_LOOKUP.name}/static:10"  # prompt lookup as the draft


@dataclass(slots=True)
class Example:
    """An example prompt and its recorded run, if there is one."""

    title: str
    prompt: str
    shows: str = ""
    lanes: list[str] = field(default_factory=list)  # []: the default ones
    recording: str | None = None
    point: str = ""  # the lane of its first sentence; "": the fastest
    pair: str = ""  # of its recorded run


def find_examples(recorded: RecordedBackend) -> list[Example]:
    """Recorded runs in order, then showcase prompts without one."""
    found = [
        Example(one.title, one.prompt, one.shows, list(one.lanes), one.id, one.point, one.pair)
        for one in recorded.recordings()
    ]
    prompts = {example.prompt for example in found}
    try:
        showcase = load_showcase()
    except UserError:  # none is shipped
        showcase = []
    found += [
        Example(p.title, p.prompt, p.shows, list(p.lanes), point=p.point) for p in showcase if p.prompt not in prompts
    ]
    return found


def default_lanes(pairs: Sequence[PairDescription]) -> list[str]:
    """The form's initial lanes; a learned policy only if it was fitted."""
    missing = missing_policies(pairs)
    return [STAND_IN if lane in missing else lane for lane in DEFAULT_LANES]


def missing_policies(pairs: Sequence[PairDescription]) -> set[str]:
    """The learned policies that were not fitted for the default pair's default draft; none if ``pairs`` are unknown."""
    if not pairs:
        return set()
    return set(learned_policies()) - set(pairs[0].fitted.get(pairs[0].default_draft, ()))


def lane_choices(pairs: Sequence[PairDescription], examples: Sequence[Example] = ()) -> list[tuple[str, str]]:
    """(name on the page, lane) of the offered lanes and those of ``examples``; unfitted policies are marked.

    Others can be typed. The first one is the best fixed SL for this machine's costs, once it is known.
    """
    missing = missing_policies(pairs)
    lanes, names = [*offered_lanes(), NGRAM_LANE], {}
    for pair in pairs[:1]:
        if best := pair.best_sl.get(pair.default_draft):
            names[f"static:{best}"] = f"Best fixed SL here: {best}"
        lanes += [f"{draft}/static:5" for draft in pair.drafts if draft != pair.default_draft]
    lanes += [lane for example in examples for lane in example.lanes]
    return [(names.get(lane) or _label(lane, missing), lane) for lane in dict.fromkeys([*names, *lanes])]


def set_here(pairs: Sequence[PairDescription]) -> str:
    """A sentence on what this machine's costs chose for the default pair's default draft; "" if nothing yet."""
    return pairs[0].set_here.get(pairs[0].default_draft, "") if pairs else ""


def _label(lane: str, missing: set[str]) -> str:
    return f"{lane_name(lane)} (fit first)" if lane.partition(":")[0] in missing else lane_name(lane)


def pair_choices(pairs: Sequence[PairDescription]) -> list[tuple[str, str]]:
    """(label, name) of the pairs that can load; the label names a preparation that is needed."""
    offered = [pair for pair in pairs if pair.loadable]
    return [(f"{pair.title} ({pair.reason})" if pair.reason else pair.title, pair.name) for pair in offered]
