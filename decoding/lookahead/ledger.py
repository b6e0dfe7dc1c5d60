"""A policy's SLs on the validation split at each threshold, from which its latency on any machine follows.

A row counts the iterations by their SL. With the cost curves (c, v, o, decision) it gives the latency per token, so
that costaware knows without the chains what a token costs it at its best on each machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..records.trace import Costs


@dataclass(frozen=True, slots=True)
class Row:
    """``histogram[n]``: number of iterations that drafted n tokens; ``n_tokens``: tokens of all of them."""

    threshold: float
    n_tokens: int
    histogram: tuple[int, ...]

    def latency(self, costs: Costs, draft: str | None, policy: str) -> float:
        """Time per token in units of a target pass over one token."""
        total = sum(count * costs.iteration(n, draft, policy) for n, count in enumerate(self.histogram) if count)
        return total / self.n_tokens


def rows_to_json(rows: Sequence[Row]) -> list[list[Any]]:
    return [[row.threshold, row.n_tokens, list(row.histogram)] for row in rows]


def rows_from_json(data: Any) -> list[Row]:
    """Raises TypeError or ValueError if ``data`` is not a ledger."""
    rows = [Row(float(t), int(n), tuple(int(count) for count in counts)) for t, n, counts in data]
    if not rows or any(row.n_tokens < 1 or not sum(row.histogram) for row in rows):
        raise ValueError("an empty ledger")
    return rows
