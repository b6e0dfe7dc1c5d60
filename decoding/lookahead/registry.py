"""From a lane to its policy."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from ..errors import UserError
from ..records.lanes import LEARNED, Lane
from .autoregressive import Autoregressive
from .base import LookaheadPolicy
from .confidence import DEFAULT_THRESHOLD as CONFIDENCE_THRESHOLD
from .confidence import Confidence
from .entropy import DEFAULT_THRESHOLD as ENTROPY_THRESHOLD
from .entropy import Entropy
from .heads import Head, need_head
from .heuristic import Heuristic
from .oracle import BestOracle, Oracle
from .static import Static


def make_policy(lane: Lane, heads: Mapping[str, Head] | None = None) -> LookaheadPolicy:
    """The policy that ``lane`` names, new.

    Args:
        lane: as parsed by :func:`decoding.records.lanes.parse_lane`.
        heads: the heads fitted for the lane's draft, by policy name; the learned policies need theirs.

    Raises:
        UserError: a learned policy without its head ("fit first").
    """
    number = lane.number
    match lane.policy:
        case "autoregressive":
            return Autoregressive()
        case "static":
            return Static(int(number or 0))
        case "heuristic":
            return Heuristic()
        case "confidence":
            return Confidence(CONFIDENCE_THRESHOLD if number is None else number)
        case "entropy":
            return Entropy(ENTROPY_THRESHOLD if number is None else number)
        case "oracle" if lane.argument == "best":
            return BestOracle()
        case "oracle":
            return Oracle(None if number is None else int(number))
        case name if name in LEARNED:
            return _make_learned(lane, heads)
    raise UserError(f"There is no policy '{lane.policy}'.")


def _make_learned(lane: Lane, heads: Mapping[str, Head] | None) -> LookaheadPolicy:
    """Each learned policy's module has ``make_policy(lane, head) -> LookaheadPolicy``."""
    head = need_head(lane.policy, heads)
    return import_module(f"{__package__}.{lane.policy}").make_policy(lane, head)
