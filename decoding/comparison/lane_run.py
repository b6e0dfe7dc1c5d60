"""One decoding of one lane: prefill, then the timed loop."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from ..lookahead.base import LaneContext
from ..lookahead.lanes import Lane
from ..loop.clock import make_clock, wait_for
from ..loop.drafting import start_text
from ..loop.speculative import RawIteration, speculative_decode
from ..records.trace import Chain, Costs, Finish
from .prepare import Prepared, models_of

UNWEIGHED = Costs(target_s=1.0, verify_curve=[1.0], draft_step={}, overhead=0.0)  # for lanes that weigh no costs


class LaneRun:
    """Decodes ``lane`` once by iteration and then holds the result. ``chain`` is for the oracles."""

    def __init__(self, prepared: Prepared, lane: Lane, costs: Costs = UNWEIGHED, chain: Chain | None = None) -> None:
        self.lane = lane
        self.iterations: list[RawIteration] = []
        self.prefill_s = 0.0
        self._prepared = prepared
        draft = prepared.draft_of(lane)
        self._policy = prepared.policy(lane)
        self.source = prepared.source(draft, self._policy.needs)
        self._context = LaneContext(draft, costs, prepared.limits.max_new_tokens, chain, prepared.prompt.ids)

    def decode(self, cancelled: Callable[[], bool] = lambda: False) -> Iterator[RawIteration]:
        """Yields the lane's iterations as they happen. Time between iterations is not counted."""
        prepared = self._prepared
        with no_garbage_collection():
            if self._records_graphs() and self.lane.text not in prepared.recorded:
                prepared.recorded.add(self.lane.text)
                for _ in self.decode_once(cancelled):
                    pass
            for iteration in self.decode_once(cancelled):
                self.iterations.append(iteration)
                yield iteration

    def decode_once(self, cancelled: Callable[[], bool] = lambda: False) -> Iterator[RawIteration]:
        """As :meth:`decode`, keeps nothing and records no graphs first."""
        prepared = self._prepared
        self._policy.reset(self._context)
        prepared.rule.reset()
        self.prefill_s = self._prefill()
        yield from speculative_decode(
            prepared.pair.target,
            self.source,
            self._policy,
            prepared.rule,
            prepared.prompt,
            prepared.limits,
            make_clock(prepared.pair.target.info.device),
            cancelled,
        )

    def _records_graphs(self) -> bool:
        """Whether an engine records a graph for a pass of a new shape. Recording takes many times the pass itself, so
        the lane is first decoded untimed, with the same passes as the timed repeats.
        """
        pair, draft = self._prepared.pair, self._prepared.draft_of(self.lane)
        return any(model.records_graphs for model in models_of(pair, [draft]))

    def run(self, cancelled: Callable[[], bool] = lambda: False) -> LaneRun:
        """Decodes to the end."""
        for _ in self.decode(cancelled):
            pass
        return self

    @property
    def output(self) -> list[int]:
        return [token for iteration in self.iterations for token in iteration.tokens]

    @property
    def finish(self) -> Finish:
        return self.iterations[-1].finish or "cancelled" if self.iterations else "cancelled"

    @property
    def decode_s(self) -> float:
        return sum(sum(iteration.times) for iteration in self.iterations)

    def _prefill(self) -> float:
        """Both models read the prompt; returns seconds, with those of a picture, which was encoded for all lanes."""
        target, picture = self._prepared.pair.target, self._prepared.prompt.picture
        before = perf_counter()
        start_text(target, [self.source], self._prepared.prompt)
        wait_for(target.info.device)
        return perf_counter() - before + (picture.seconds if picture else 0.0)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disables garbage collection, which would run at arbitrary moments in one lane's time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
