"""Repetition loops: small models fall into them, and drafting is easy there. Imports no torch.

A *loop* is a stretch of text that repeats with a period of at most MOST_PERIOD tokens, holds at least LEAST_TIMES
periods and at least LEAST_LENGTH tokens. Its first period is new text; the rest of the stretch counts as inside the
loop.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_PERIOD = 64
LEAST_TIMES = 3
LEAST_LENGTH = 16


def inside_loops(tokens: Sequence[int]) -> list[bool]:
    """For each token whether it lies inside a loop."""
    inside = [False] * len(tokens)
    for period in range(1, min(MOST_PERIOD, len(tokens) // LEAST_TIMES) + 1):
        needed = max((LEAST_TIMES - 1) * period, LEAST_LENGTH - period)
        run = 0
        for end in range(period, len(tokens) + 1):
            if end < len(tokens) and tokens[end] == tokens[end - period]:
                run += 1
                continue
            if run >= needed:
                inside[end - run : end] = [True] * run
            run = 0
    return inside


def distinct(texts: Sequence[Sequence[int]], n: int = 4) -> float:
    """Distinct n-grams over all n-grams of the texts (Li et al. 2016, distinct-n); 1.0 when there are none."""
    grams = [tuple(text[i : i + n]) for text in texts for i in range(len(text) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def runs_that_hold(hits: Sequence[bool]) -> list[int]:
    """The oracle's SLs along a text: runs of accepted guesses, each followed by one correction.

    The last run is cut off by the end of the text and counts unchanged (``decoding.analysis.metrics.oracle_sls``).
    """
    runs, run = [], 0
    for hit in hits:
        if hit:
            run += 1
        else:
            runs.append(run)
            run = 0
    return [*runs, run] if run else runs
