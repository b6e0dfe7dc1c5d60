"""What calibration and tuning read from the validation prompts' chains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..analysis.whatif import Recorded
from ..records.trace import Chain, Guesses


def rescored(recorded: Recorded, policy: str, column: str, change: Callable[[np.ndarray], np.ndarray]) -> Recorded:
    """The chain with only one column of scores, transformed and named after its ``policy``."""
    chain = recorded.chain

    def only(guesses: Guesses) -> Guesses:
        scores = change(np.array(guesses.scores[column])).tolist() if guesses.choice else []
        return replace(guesses, scores={policy: scores})

    tails = {at: only(tail) for at, tail in chain.tails.items()}
    starts = [only(guesses) for guesses in chain.starts]
    return replace(recorded, chain=replace(chain, along=only(chain.along), tails=tails, starts=starts))


def judged(chain: Chain) -> Guesses:
    """One guess for each place: those along the text or, where a guess depends on where its iteration began, those of
    iterations that end with their first mistake.
    """
    if not chain.starts:
        return chain.along
    found = Guesses([], [], [], {name: [] for name in chain.along.scores})
    while (start := len(found.choice)) < len(chain.target):
        guesses = chain.starts[start]
        if guesses.choice:
            _extend(found, guesses, slice(0, min(chain.holds(start) + 1, len(chain.target) - start)))
        else:  # nothing to propose
            _extend(found, chain.along, slice(start, start + 1))
    return found


def _extend(to: Guesses, guesses: Guesses, part: slice) -> None:
    to.choice += guesses.choice[part]
    to.p += guesses.p[part]
    to.entropy += guesses.entropy[part]
    for name, column in to.scores.items():
        column += guesses.scores[name][part]


def along(recorded: Sequence[Recorded], column: str) -> tuple[np.ndarray, np.ndarray]:
    """(score, held) for the judged guess of each place."""
    scores = np.concatenate([judged(one.chain).scores[column] for one in recorded])
    return scores, np.concatenate([held(one.chain) for one in recorded])


def everywhere(chain: Chain, column: str) -> tuple[np.ndarray, np.ndarray]:
    """(p, score) for all guesses that a policy can see: along the text and after each mistake."""
    p = np.concatenate([np.array(one.p) for one in chain.lists()])
    return p, np.concatenate([np.array(one.scores[column]) for one in chain.lists()])


def held(chain: Chain) -> np.ndarray:
    """1.0 if the judged guess of a place is the target's token, else 0.0."""
    return _right(judged(chain), chain)


def _right(guesses: Guesses, chain: Chain) -> np.ndarray:
    return np.array([a == b for a, b in zip(guesses.choice, chain.target, strict=True)], dtype=np.float64)


def first_guesses(recorded: Sequence[Recorded]) -> dict[str, float]:
    """Chance that an iteration's first guess holds: at the start, after full acceptance, after a rejection.

    After a rejection at t the next iteration begins at t + 1. After full acceptance it can begin anywhere; this is
    estimated by the positions that follow two right guesses.
    """
    firsts = [_right(one.chain.along, one.chain) for one in recorded]
    rights = [held(one.chain) for one in recorded]
    start = np.array([first[0] for first in firsts])
    missed = np.concatenate([first[1:][right[:-1] < 0.5] for first, right in zip(firsts, rights)])
    after = np.concatenate([first[2:][right[:-2] > 0.5] for first, right in zip(firsts, rights)])
    means = {"start": start, "missed": missed, "held": after}
    # Laplace smoothing: no chance is 0 or 1.
    return {name: float((outcomes.sum() + 1.0) / (len(outcomes) + 2.0)) for name, outcomes in means.items()}
