"""What the form offers: lanes, pairs and examples, as far as they are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from decoding.backends.recorded import RecordedBackend
from decoding.errors import UserError
from decoding.lookahead.lanes import STAND_IN
from decoding.lookahead.specs import learned_policies, offered_lanes
from decoding.records.pairs import PairDescription
from decoding.records.request import DEFAULT_LANES
from decoding.records.suites import load_showcase

NGRAM_LANE = "ngram/static:10"  # prompt lookup as the draft


@dataclass(slots=True)
class Example:
    """A prompt that shows something, and the recorded run of it where there is one."""

    title: str
    prompt: str
    shows: str = ""
    lanes: list[str] = field(default_factory=list)  # [] : the default ones
    recording: str | None = None
    point: str = ""  # the lane that its first sentence is to be about; "": the fastest


def find_examples(recorded: RecordedBackend) -> list[Example]:
    """Recorded runs in their order, then the showcase prompts that have none."""
    found = [
        Example(one.title, one.prompt, one.shows, list(one.lanes), one.id, one.point) for one in recorded.recordings()
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
    """The lanes that the form opens with: a learned policy only where it was fitted."""
    missing = missing_policies(pairs)
    return [STAND_IN if lane in missing else lane for lane in DEFAULT_LANES]


def missing_policies(pairs: Sequence[PairDescription]) -> set[str]:
    """The learned policies that the default pair's default draft has not got."""
    if not pairs:
        return set(learned_policies())
    return set(learned_policies()) - set(pairs[0].fitted.get(pairs[0].default_draft, ()))


def lane_choices(pairs: Sequence[PairDescription]) -> list[tuple[str, str]]:
    """(label, lane) of what the form offers; a policy that is not fitted says so. Others can be typed."""
    missing = missing_policies(pairs)
    lanes = [*offered_lanes(), NGRAM_LANE]
    for pair in pairs[:1]:
        lanes += [f"{draft}/static:5" for draft in pair.drafts if draft != pair.default_draft]
    return [(f"{lane} (fit first)" if lane.partition(":")[0] in missing else lane, lane) for lane in lanes]


def pair_choices(pairs: Sequence[PairDescription]) -> list[tuple[str, str]]:
    """(label, name) of the pairs that can load; one that takes a step first says which."""
    offered = [pair for pair in pairs if pair.loadable]
    return [(f"{pair.title} ({pair.reason})" if pair.reason else pair.title, pair.name) for pair in offered]
