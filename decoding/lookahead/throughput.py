"""throughput: the SL with the most expected tokens per measured second, from recent acceptance by position.

Source: SGLang's ``throughput_aware`` strategy, for a batch of one. It uses only history and costs, no features of
tokens:

    SL = argmax over n of  E(n) / T(n),    E(n) = 1 + p_1 + ... + p_n,

with p_i the chance that the first i guesses of an iteration all hold and T(n) the cost of an iteration of n guesses
under the run's cost curves. p_i = r_1 ... r_i, with r_j the share of guesses at position j that held given that those
before them held, over the last WINDOW iterations. Two things differ from the source. A text has some dozen iterations,
too few to wait for a full window at every position: each r_j has a prior of PRIOR guesses with the share over all
positions, which also serves for positions never reached, and that share has START as its prior. And a change of SL
costs nothing here (there it changes CUDA graphs), so the best SL is taken at once, without hysteresis.
"""

from __future__ import annotations

from collections import deque

from .base import SL_CAP, LaneContext, PlannedPolicy
from .spec import PolicySpec

WINDOW = 20  # iterations; SGLang's default window_size
PRIOR = 4.0  # weight of both priors, in guesses
START = 0.8  # prior share of guesses that hold


class Throughput(PlannedPolicy):
    """Plans each iteration from the outcomes of earlier ones."""

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

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        if n_drafted:  # else the limit left no room to draft: nothing to learn
            self._seen.append((n_drafted, n_accepted))

    def _rates(self) -> list[float]:
        """r_1 .. r_SL_CAP: the share of guesses at each position that held, given that those before them held."""
        tried, held = [0] * SL_CAP, [0] * SL_CAP
        for n_drafted, n_accepted in self._seen:
            for place in range(min(n_accepted + 1, n_drafted, SL_CAP)):
                tried[place] += 1
                held[place] += place < n_accepted
        share = (sum(held) + PRIOR * START) / (sum(tried) + PRIOR)
        return [(h + PRIOR * share) / (t + PRIOR) for h, t in zip(held, tried)]


SPEC = PolicySpec(
    Throughput,
    title="Throughput",
    caption="the SL with the most expected tokens per second, from how often guesses held recently",
    source="SGLang, throughput_aware",
    order=30,
)
