"""Creates a lane's policy."""

from __future__ import annotations

from collections.abc import Mapping

from .base import LookaheadPolicy
from .fitted import need_head
from .heads import Head
from .lanes import Lane


def make_policy(lane: Lane, heads: Mapping[str, Head] | None = None) -> LookaheadPolicy:
    """A new policy for ``lane``.

    Args:
        lane: as parsed by :func:`decoding.lookahead.lanes.parse_lane`.
        heads: the heads fitted for the lane's draft, by policy name; required for learned policies.

    Raises:
        UserError: a learned policy without its head ("fit first").
    """
    head = need_head(lane.policy, heads) if lane.is_learned else None
    return lane.spec.build(lane.argument, head)
