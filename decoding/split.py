"""The cheapest way to cut a known text into iterations: the plan of the ``oracle:best`` policy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def best_split(
    holds: Callable[[int], int], n_tokens: int, cost: Callable[[int], float], wanted: int | None = None
) -> list[int]:
    """The SL at every output position that makes the rest of the text cheapest.

    Dynamic programming from the end of the text: with ``f(n_tokens) = 0``,

        f(s) = min over n <= holds(s) of  cost(n) + f(s + n + 1)

    where an iteration of n right guesses yields n + 1 tokens. To draft beyond ``holds(s)`` only costs, so
    it is not looked at. ``n`` is also at most ``wanted - s - 1``, as in the loop.

    Args:
        holds: start -> number of guesses in a row that are right from there on.
        n_tokens: length of the text. cost: SL -> cost of an iteration (any unit).
        wanted: the token limit where the text ended before it (end of sequence); else ``n_tokens``.

    Returns:
        ``plan[start]``, n_tokens entries. A lane that starts at 0 follows it to the true floor.
    """
    wanted = n_tokens if wanted is None else max(wanted, n_tokens)
    most = [max(0, min(holds(start), wanted - start - 1)) for start in range(n_tokens)]
    costs = np.array([cost(n) for n in range(max(most, default=0) + 1)])
    rest = np.zeros(
        n_tokens + 2
    )  # rest[s]: f(s); an end of text among the accepted tokens leads to n_tokens + 1
    plan = [0] * n_tokens
    for start in range(n_tokens - 1, -1, -1):
        totals = costs[: most[start] + 1] + rest[start + 1 : start + most[start] + 2]
        plan[start] = int(totals.argmin())
        rest[start] = totals[plan[start]]
    return plan
