"""Says before a run which models it uses and how long its timings take, from the cost curves kept for this machine.

What is measured and read untimed comes on top: nobody knows before whether the kept curves still hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from decoding.backends.recorded import RecordedBackend
from decoding.errors import UserError
from decoding.lookahead.base import SL_CAP
from decoding.lookahead.lanes import Lane, parse_lane
from decoding.lookahead.static import expected_tokens
from decoding.records.pairs import PairDescription
from decoding.records.request import SETTINGS
from decoding.records.trace import Costs

from .player.sentences import model_size

MATCH = (0.85, 0.3)  # shares of guesses that hold: of a text that is easy for the draft, and of a hard one
USUAL_SL = 5  # of policies that choose it themselves, at their worst
_COSTS = TypeAdapter(Costs)


def models_sentence(pair: PairDescription, recorded: RecordedBackend, lanes: Sequence[str] = ()) -> str:
    """ "SmolLM2-135M-Instruct (135M parameters) checks what three-layers (39M) guesses." Names the drafts of ``lanes``,
    or the default one where these name none.
    """
    target, draft = _models(pair, recorded)
    named = list(dict.fromkeys(_drafts(pair, lanes))) or [pair.default_draft]
    if target is None or draft is None:
        return f"{pair.title or pair.name}: {_guess(named)}, the target checks."
    known = {name: kept["draft"] for name, kept in pair.curves.items()} | {pair.default_draft: draft}
    sized = {
        name: f"{one['name']} ({model_size(one['parameters'])})" for name, one in known.items() if one["parameters"]
    }
    shown = [sized.get(name, name) for name in named]
    return f"{target['name']} ({model_size(target['parameters'])} parameters) checks what {_guess(shown)}."


def _drafts(pair: PairDescription, lanes: Sequence[str]) -> list[str]:
    """The draft of each lane that has one; none where a lane is not valid."""
    try:
        read = [parse_lane(lane).draft_in(pair.default_draft) for lane in lanes]
    except UserError:
        return []
    return [draft for draft in read if draft]


def _guess(drafts: Sequence[str]) -> str:
    *others, last = drafts
    return f"{', '.join(others)} and {last} guess" if others else f"{last} guesses"


def _models(pair: PairDescription, recorded: RecordedBackend) -> tuple[Any, Any]:
    """Name and size of the target and the default draft: of the kept curves, else of a recorded run; or None."""
    if kept := pair.curves.get(pair.default_draft):
        return kept["target"], kept["draft"]
    of_pair = next((info.id for info in recorded.recordings() if info.pair == pair.name), None)
    try:
        models = recorded.load(of_pair).pair if of_pair else None
    except UserError:
        models = None
    if models is None or pair.default_draft not in models.drafts:
        return None, None
    both = models.target, models.drafts[pair.default_draft]
    return tuple({"name": one.name, "parameters": one.parameters} for one in both)


def measured_in(formats: Iterable[str]) -> bool:
    """Whether these number formats, of target and drafts, are those of the kept curves: the ones that a trial chose."""
    return set(formats) <= {"auto"}


def time_sentence(
    pair: PairDescription, lanes: Sequence[str], max_new_tokens: Any, repeats: Any, formats: Sequence[str] = ()
) -> str:
    """ "The timings take 6 to 9 s here, each 2 to 3 s; less if ..." "" where nothing is known."""
    if not measured_in(formats):
        return ""
    if SETTINGS["max_new_tokens"].fault(max_new_tokens) or SETTINGS["repeats"].fault(repeats):
        return ""
    try:
        read = [parse_lane(lane) for lane in lanes]
        costs = {name: _COSTS.validate_json(json.dumps(kept["costs"])) for name, kept in pair.curves.items()}
    except (UserError, ValidationError):
        return ""
    measured = costs.get(pair.default_draft)
    if not read or measured is None or not set(_drafts(pair, lanes)) <= costs.keys():
        return ""
    once = [sum(_lane_seconds(lane, pair, costs, max_new_tokens, match) for lane in read) for match in MATCH]
    text = f"The timing takes {_range(once)} here"
    if repeats > 1:
        text = f"The timings take {_range(repeats * one for one in once)} here, each {_range(once)}"
    return f"{text}; less if the text ends early. Preparing and reading the prompt come on top."


def _lane_seconds(lane: Lane, pair: PairDescription, costs: dict[str, Costs], n_tokens: int, match: float) -> float:
    """Seconds of one timing of ``lane`` over ``n_tokens`` tokens, if each guess holds with probability ``match``."""
    draft = lane.draft or pair.default_draft
    if lane.is_plain:
        return n_tokens * costs[pair.default_draft].target_s * costs[pair.default_draft].iteration(0, None)
    own = costs[draft]

    def of_sl(sl: int) -> float:
        return n_tokens / expected_tokens(match, sl) * own.iteration(sl, draft, lane.policy) * own.target_s

    if lane.policy == "static" and lane.number:
        return of_sl(int(lane.number))
    best = min(map(of_sl, range(1, SL_CAP + 1)))
    return best if match == MATCH[0] else max(best, of_sl(USUAL_SL))


def _range(seconds: Iterable[float]) -> str:
    """ "5 to 9 s"; "about 7 s" where both ends read alike."""
    low, high = (f"{second:.1f}" if second < 2 else f"{second:.0f}" for second in seconds)
    return f"about {low} s" if low == high else f"{low} to {high} s"
