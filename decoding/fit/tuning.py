"""Tuning on the validation split: the simulated cost of each threshold on recorded chains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..analysis.whatif import Replay, simulate
from ..lookahead.base import SL_CAP, SL_CAP_LEARNED, LookaheadPolicy
from ..lookahead.ledger import Row
from ..lookahead.oracle import Oracle
from ..lookahead.static import Static
from ..records.trace import Chain, Costs, Finish, Guesses

CAPS = (8, 12, 16, SL_CAP, 28, 40, SL_CAP_LEARNED)
LONG_CAPS = (SL_CAP, SL_CAP_LEARNED)


@dataclass(slots=True)
class Recorded:
    """One validation prompt: its chain, and how its text ended."""

    chain: Chain
    max_new_tokens: int
    finish: Finish

    def with_score(self, policy: str, column: str, change: Callable[[np.ndarray], np.ndarray]) -> Recorded:
        """The chain with only one column of scores, transformed and named after its ``policy``."""
        tails = {at: _rescored(tail, policy, column, change) for at, tail in self.chain.tails.items()}
        along = _rescored(self.chain.along, policy, column, change)
        return replace(self, chain=replace(self.chain, along=along, tails=tails))


def _rescored(guesses: Guesses, policy: str, column: str, change: Callable[[np.ndarray], np.ndarray]) -> Guesses:
    scores = change(np.array(guesses.scores[column])).tolist() if guesses.choice else []
    return replace(guesses, scores={policy: scores})


def along(recorded: Sequence[Recorded], column: str) -> tuple[np.ndarray, np.ndarray]:
    """(score, held) for all guesses along the texts."""
    scores = np.concatenate([one.chain.along.scores[column] for one in recorded])
    return scores, np.concatenate([held(one.chain) for one in recorded])


def everywhere(chain: Chain, column: str) -> tuple[np.ndarray, np.ndarray]:
    """(p, score) for all guesses that a policy can see: along the text and after each mistake."""
    lists = [chain.along, *chain.tails.values()]
    p = np.concatenate([np.array(one.p) for one in lists])
    return p, np.concatenate([np.array(one.scores[column]) for one in lists])


def held(chain: Chain) -> np.ndarray:
    """1.0 if the guess is the target's token, else 0.0."""
    return np.array([a == b for a, b in zip(chain.along.choice, chain.target, strict=True)], dtype=np.float64)


def first_guesses(recorded: Sequence[Recorded]) -> dict[str, float]:
    """Chance that an iteration's first guess holds: at the start, after full acceptance, after a rejection.

    After a rejection at t the next iteration begins at t + 1. After full acceptance it can begin anywhere; this is
    estimated by the positions that follow two right guesses.
    """
    rights = [held(one.chain) for one in recorded]
    start = np.array([right[0] for right in rights])
    missed = np.concatenate([right[1:][right[:-1] < 0.5] for right in rights])
    after = np.concatenate([right[2:][right[:-2] > 0.5] for right in rights])
    means = {"start": start, "missed": missed, "held": after}
    # Laplace smoothing: no chance is 0 or 1.
    return {name: float((outcomes.sum() + 1.0) / (len(outcomes) + 2.0)) for name, outcomes in means.items()}


class Bench:
    """All validation chains ready for replay; computes the latency of policies under one set of costs."""

    def __init__(self, recorded: Sequence[Recorded], costs: Costs) -> None:
        self._replays = [(Replay(one.chain), one) for one in recorded]
        self._costs = costs
        self._draft = recorded[0].chain.draft

    def row(self, policy: LookaheadPolicy, threshold: float) -> Row:
        """The histogram of iterations by SL that ``policy`` gives on these texts."""
        histogram = [0] * (SL_CAP + 1)
        for replay, one in self._replays:
            found = simulate(replay, self._costs, policy, max_new_tokens=one.max_new_tokens, finish=one.finish)
            for _, drafted, _ in found.iterations:
                while drafted >= len(histogram):  # the oracle has no cap
                    histogram.append(0)
                histogram[drafted] += 1
        return Row(float(threshold), sum(replay.n_tokens for replay, _ in self._replays), tuple(histogram))

    def latency(self, row: Row, policy: str) -> float:
        return row.latency(self._costs, self._draft, policy)

    def static_opt(self) -> tuple[int, float]:
        """(SL, latency per token) of the best static policy."""
        found = {sl: self.latency(self.row(Static(sl), sl), "static") for sl in range(1, SL_CAP + 1)}
        return min(found.items(), key=lambda item: item[1])

    def oracle(self) -> float:
        """Latency per token of the oracle."""
        return self.latency(self.row(Oracle(None), 0.0), "oracle")
