"""throughput: the SL with the most expected tokens per measured second, from how far recent guesses held.

Source: SGLang's ``throughput_aware`` strategy, for a batch of one. It looks at no token, only at history and cost:

    SL = argmax over n of  E(n) / T(n),    E(n) = 1 + p_1 + ... + p_n,

with p_i the chance that the first i guesses of an iteration all hold and T(n) what an iteration of n guesses costs
under the run's cost curves. p_i = r_1 ... r_i, with r_j the share of guesses in place j that held where those before
them did, over the last WINDOW iterations. Two things differ from the source. A text has some dozen iterations, too
few to wait for a full window in every place: each r_j leans, by PRIOR guesses, on the share over all places, which
also stands for places never reached, and that share leans on START. And a change of SL costs nothing here (there it
changes CUDA graphs), so the best SL is taken at once, without a margin over the current one.
"""

from __future__ import annotations

from collections import deque

from .base import SL_CAP, DraftState, LaneContext, LookaheadPolicy
from .spec import PolicySpec

WINDOW = 20  # iterations; SGLang's default window_size
PRIOR = 4.0  # guesses' worth of evidence that a place takes from all places, and they from START
START = 0.8  # share of guesses that hold before any was seen


class Throughput(LookaheadPolicy):
    """Plans each iteration from the outcomes of those before it."""

    name = "throughput"

    def reset(self, context: LaneContext) -> None:
        self._cost = [context.costs.iteration(n, context.draft, self.name) for n in range(SL_CAP + 1)]
        self._seen: deque[tuple[int, int]] = deque(maxlen=WINDOW)

    def planned(self, start: int) -> int:
        held = expected = 1.0
        best, most = 1, 0.0
        for n, rate in enumerate(self._rates(), start=1):
            held *= rate
            expected += held
            if expected / self._cost[n] > most:
                best, most = n, expected / self._cost[n]
        return best

    def should_draft(self, state: DraftState) -> bool:
        return state.n_drafted < self.planned(state.start)

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        if n_drafted:  # else the limit left no room to draft: nothing was learnt
            self._seen.append((n_drafted, n_accepted))

    def _rates(self) -> list[float]:
        """r_1 .. r_SL_CAP: of the guesses in each place that counted, the share that held."""
        tried, held = [0] * SL_CAP, [0] * SL_CAP
        for n_drafted, n_accepted in self._seen:
            for place in range(min(n_accepted + 1, n_drafted, SL_CAP)):
                tried[place] += 1
                held[place] += place < n_accepted
        share = (sum(held) + PRIOR * START) / (sum(tried) + PRIOR)
        return [(h + PRIOR * share) / (t + PRIOR) for h, t in zip(held, tried)]


SPEC = PolicySpec(
    name="throughput",
    title="Throughput",
    caption="as many guesses as gave the most text per second lately, by how often each place in a row held",
    source="SGLang, throughput_aware",
    make=Throughput,
    order=30,
    offered=("throughput",),
    evaluated=("throughput",),
)
