"""What a comparison tells while it runs: numbered events of plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "queued",  # {place}: how many comparisons stand before this one
    "started",  # {settings, pair, lanes: [lane string]}
    "progress",  # {stage, message, fraction | None}: loading, measuring, warming up, lane, chain
    "lane_started",  # {lane: index, repeat}
    "iterations",  # {lane, repeat, first: iteration index, items: [see live_iteration]}
    "lane_finished",  # {lane, repeat, decode_s}
    "finished",  # {run: the whole run as JSON-ready dict}
    "cancelled",  # {}
    "failed",  # {message}: a sentence for people
    "heartbeat",  # {}: only on the wire between machines; not numbered
]
LAST_KINDS = ("finished", "cancelled", "failed")


@dataclass(slots=True)
class Event:
    """One event of the comparison ``run``; ``seq`` counts from 0 without gaps."""

    run: str
    seq: int
    kind: Kind
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def is_last(self) -> bool:
        return self.kind in LAST_KINDS
