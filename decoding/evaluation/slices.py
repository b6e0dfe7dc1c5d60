"""Timing one prompt with all lanes in short slices.

A shared machine has slow moments of about a second, which would hit one lane and not the next. So the lanes take turns:
the one with the shortest text decodes for a tenth of a second and then pauses between two iterations, with its models
and caches unchanged. Two lanes never run at once. The first pass of a slice finds the CPU caches filled by
another lane; it is one of about twenty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter

from ..comparison.lane_run import LaneRun, no_garbage_collection
from ..comparison.prepare import Prepared
from ..engines.pair import Pair
from ..lookahead.lanes import parse_lane
from ..records.trace import Chain, Costs

SLICE_S = 0.1


class Slices:
    """Decodes prompts with many lanes that share weights and have separate caches."""

    def __init__(self, pair: Pair, costs: Costs, cancelled: Callable[[], bool]) -> None:
        self._pair, self._costs, self._cancelled = pair, costs, cancelled
        self._forks: dict[str, Pair] = {}

    def run(
        self, prepared: Callable[[], Prepared], lanes: Sequence[str], chains: Mapping[str, Chain]
    ) -> dict[str, LaneRun]:
        """Lane -> its run, all decoded to the end (or stopped if ``cancelled()`` is true).

        ``prepared()`` prepares the prompt, once per lane; ``chains`` are the oracles' chains, by lane. Models that
        cannot be forked (see ``Pair.fork``) decode the lanes one after another.
        """
        runs = {}
        for text in lanes:
            own = replace(prepared(), pair=self._pair_of(text))
            runs[text] = LaneRun(own, parse_lane(text), self._costs, chains.get(text))
        with no_garbage_collection():  # the first lane to end must not enable it for the others
            _take_turns(runs, self._cancelled, SLICE_S if self._pair.can_fork else math.inf)
        return runs

    def _pair_of(self, lane: str) -> Pair:
        if not self._pair.can_fork:
            return self._pair
        if lane not in self._forks:
            self._forks[lane] = self._pair.fork()
        return self._forks[lane]


def _take_turns(runs: Mapping[str, LaneRun], cancelled: Callable[[], bool], seconds: float) -> None:
    """Decodes all ``runs`` to the end in slices of ``seconds`` (infinity: one after another)."""
    unfinished = {lane: run.decode(cancelled) for lane, run in runs.items()}
    length = dict.fromkeys(runs, 0)  # of the texts so far
    while unfinished:
        lane = min(unfinished, key=length.__getitem__)
        if _decode_for(unfinished[lane], seconds):
            del unfinished[lane]
        length[lane] = len(runs[lane].output)


def _decode_for(decoding: Iterator[object], seconds: float) -> bool:
    """Decodes for ``seconds``. Returns whether the end was reached."""
    end = perf_counter() + seconds
    for _ in decoding:
        if perf_counter() >= end:
            return False
    return True
