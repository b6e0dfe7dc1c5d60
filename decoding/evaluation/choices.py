"""What an evaluation chooses on the validation prompts, and among which lanes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..lookahead.base import SL_CAP
from ..lookahead.heads import Head
from ..lookahead.lanes import parse_lane, spec_of
from ..lookahead.spec import PolicySpec, all_specs
from ..records.trace import Costs
from .results import STATIC_OPT, TREE_OPT
from .samples import Sample, replay_lane

BUDGETS = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # guesses of a tree


def best_of(
    lanes: Sequence[str], samples: Sequence[Sample], costs: Costs, heads: Mapping[str, Head] | None = None
) -> str:
    """The lane with the largest speedup on ``samples`` (validation prompts); the first on a tie."""
    if len(lanes) == 1:
        return lanes[0]
    return max(lanes, key=lambda lane: replay_lane(lane, samples, costs, heads).speedup)


def static_lanes(draft: str | None = None) -> list[str]:
    return [f"{draft}/static:{sl}" if draft else f"static:{sl}" for sl in range(1, SL_CAP + 1)]


TUNED = {STATIC_OPT: static_lanes(), TREE_OPT: [f"tree:{budget}" for budget in BUDGETS]}


def is_tree(lane: str) -> bool:
    """Whether the lane, or the label of a tuned one, guesses trees."""
    spec = spec_of(lane)
    return lane == TREE_OPT or (spec is not None and spec.branches)


def tuned_lanes(
    labels: Sequence[str], validation: Sequence[Sample], costs: Costs, heads: Mapping[str, Head] | None = None
) -> dict[str, str]:
    """Label -> lane: with the number that is best on ``validation`` at these costs, where the label names none."""
    return {label: best_of(candidates_of(label), validation, costs, heads) for label in labels}


def candidates_of(label: str) -> list[str]:
    """The lanes that a label may stand for: those of TUNED; a learned policy without a number as it was fitted and with
    each number among which it is tuned; else the lane itself.
    """
    if label in TUNED:
        return TUNED[label]
    lane = parse_lane(label)
    argument = lane.spec.argument
    if not lane.is_learned or lane.number is not None or argument is None:
        return [label]
    return [label, *(f"{label.partition(':')[0]}:{number:g}" for number in argument.tuned)]


def chain_candidates(lanes: Sequence[str]) -> list[str]:
    """The policies of ``lanes``, each with every second number among which it is tuned, and all static SLs."""
    found = static_lanes()
    for lane in map(parse_lane, lanes):
        argument = lane.spec.argument
        numbers = (argument.tuned or argument.sweep)[::2] if argument is not None else ()
        if lane.policy != "static":
            found += [f"{lane.policy}:{number:g}" for number in numbers] or [lane.text]
    return list(dict.fromkeys(found))


def decides(spec: PolicySpec) -> bool:
    """Whether the policy needs no fitting and chooses the SL itself."""
    return spec.adapts and not spec.learned


def draft_candidates(draft: str, learned: Iterable[str], certain: bool = False) -> list[str]:
    """The candidates for a draft's best policy: every second argument of a sweep, and all numbers of learned policies.

    ``learned``: the policies that were fitted for it.
    ``certain``: the draft's proposals have probability 1, and no policy can decide by them.
    """
    lanes = static_lanes(draft)
    for name, spec in all_specs().items():
        if not decides(spec) or (certain and spec.looks_at_guesses):
            continue
        sweep = spec.argument.sweep[1::2] if spec.argument is not None else ()
        lanes += [f"{draft}/{name}:{value:g}" for value in sweep] or [f"{draft}/{name}"]
    return lanes + [lane for policy in learned for lane in candidates_of(f"{draft}/{policy}")]
