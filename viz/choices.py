"""The form's choices: the available lanes, pairs and examples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from decoding.backends.recorded import RecordedBackend
from decoding.errors import UserError
from decoding.lookahead.lanes import STAND_IN, check_certain, parse_lane, spec_of
from decoding.lookahead.spec import all_specs, learned_policies, offered_lanes
from decoding.records.pairs import MODEL_FREE, PROMPT_LOOKUP, PairDescription
from decoding.records.request import DEFAULT_LANES, MAX_LANES
from decoding.records.suites import load_showcase

from .player.names import lane_caption, lane_name, lane_of_name

GROUPS = (
    "Without a draft",
    "A static SL, or a simple rule",
    "Stop where the draft is unsure",
    "Learned from texts",
    "Trees of guesses",
    "Ceilings, not usable",
    "With another draft",
)
BEST_SL = "Best static SL here"
NGRAM_LANE = f"{PROMPT_LOOKUP.name}/static:10"  # prompt lookup as the draft


@dataclass(slots=True)
class Example:
    """An example prompt and its recorded run, if there is one."""

    title: str
    prompt: str
    lanes: list[str] = field(default_factory=list)  # []: the default ones
    recording: str | None = None
    pair: str = ""  # of its recorded run


def find_examples(recorded: RecordedBackend) -> list[Example]:
    """Recorded runs in order, with those of their lanes that can be run here, then showcase prompts without one."""
    found = [
        Example(one.title, one.prompt, [lane for lane in one.lanes if not _fault_of(lane)], one.id, one.pair)
        for one in recorded.recordings()
    ]
    prompts = {example.prompt for example in found}
    return found + [Example(p.title, p.prompt, list(p.lanes)) for p in load_showcase() if p.prompt not in prompts]


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

    They stand in the order of GROUPS; others can be typed. The first of ``pairs`` is the chosen one: its best static SL
    for this machine's costs is there, once it is known, and no lane of an example with a draft that only others have.
    """
    missing = missing_policies(pairs)
    lanes, names = [*offered_lanes(), NGRAM_LANE], {}
    for pair in pairs[:1]:
        if best := pair.best_sl.get(pair.default_draft):
            names[f"static:{best}"] = f"{BEST_SL}: {best}"
        lanes += [f"{draft}/static:5" for draft in pair.drafts if draft != pair.default_draft]
    of_others = {draft for pair in pairs[1:] for draft in pair.drafts}.difference(*(pair.drafts for pair in pairs[:1]))
    lanes += [lane for example in examples for lane in example.lanes if parse_lane(lane).draft not in of_others]
    ordered = sorted(dict.fromkeys([*names, *lanes]), key=lambda lane: GROUPS.index(_group(lane)))
    return [(names.get(lane) or _label(lane, missing), lane) for lane in ordered]


def lane_lines(choices: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """For each label of the list of lanes its group and a line on what the lane does."""
    best = [_group("static:1"), "always the SL that was best on validation prompts, at this machine's costs"]
    lines = {label: [_group(lane), _line(lane)] for label, lane in choices if not label.startswith(BEST_SL)}
    return {**lines, BEST_SL: best}  # for the label with any number


def _group(lane: str) -> str:
    """The group of GROUPS in which the list shows ``lane``."""
    read = parse_lane(lane)
    if read.draft:
        return GROUPS[-1]
    spec = read.spec
    if spec.plain:
        return GROUPS[0]
    return GROUPS[3 if spec.learned else 4 if spec.branches else 5 if spec.foresees else 2 if spec.score else 1]


def _line(lane: str) -> str:
    spelled = parse_lane(lane).spec.spelled
    return f"{spelled}: {lane_caption(lane)}" if spelled else lane_caption(lane)


def read_lanes(typed: Sequence[str], choices: Sequence[tuple[str, str]]) -> tuple[list[str], str]:
    """The lanes of what was chosen or typed, and sentences on those that cannot be run, in the list's words.

    The beginning of one label is enough, or a part of it: Enter in the list keeps what was typed.
    """
    found, unknown, faults = [], [], []
    for text in (one.strip() for one in typed):
        holding = [(label.lower(), lane) for label, lane in choices if len(text) > 2 and text.lower() in label.lower()]
        begun = [lane for label, lane in holding if label.startswith(text.lower())] or [lane for _, lane in holding]
        named = lane_of_name(text)
        named = named if spec_of(named) else named.lower()
        is_whole = ":" in named and not _fault_of(named)  # "Static 2" is not the beginning of "Static 20"
        lane = begun[0] if len(begun) == 1 and not is_whole else named
        if not (why := _fault_of(lane)):
            found.append(lane)
        elif spec_of(lane):
            faults.append(why)
        else:
            unknown.append(f"“{text[:40]}”")
    if unknown:
        titles = ", ".join(spec.title for spec in all_specs().values())
        faults.insert(0, f"There is no lane {' or '.join(unknown)}. There are {titles}.")
    lanes = list(dict.fromkeys(found))
    if len(lanes) > MAX_LANES:
        faults.append(f"A run has at most {MAX_LANES} lanes: remove one before you add another.")
    return lanes[:MAX_LANES], " ".join(dict.fromkeys(faults))


def _fault_of(lane: str) -> str:
    """Why ``lane`` cannot be run here, as a sentence; "" if it can."""
    try:
        read = parse_lane(lane)
        if read.draft in MODEL_FREE:
            check_certain(read, read.draft)
    except UserError as error:
        return str(error)
    return ""


def set_here(pairs: Sequence[PairDescription], name: str) -> str:
    """A sentence on what this machine's costs chose for that pair's default draft; "" if nothing yet."""
    pair = pair_named(name, pairs)
    return pair.set_here.get(pair.default_draft, "") if pair else ""


def _label(lane: str, missing: set[str]) -> str:
    return f"{lane_name(lane)} (fit first)" if lane.partition(":")[0] in missing else lane_name(lane)


def pair_named(name: str, pairs: Sequence[PairDescription]) -> PairDescription | None:
    """The pair of that name, the first one for ""; None if there is none."""
    return next((pair for pair in pairs if not name or name == pair.name), None)


def pair_choices(pairs: Sequence[PairDescription]) -> list[tuple[str, str]]:
    """(label, name) of the pairs that can load; the label names a preparation that is needed."""
    offered = [pair for pair in pairs if pair.loadable]
    return [(f"{pair.title} ({pair.reason})" if pair.reason else pair.title, pair.name) for pair in offered]
