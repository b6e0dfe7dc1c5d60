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


def along(recorded: Sequence[Recorded], column: str) -> tuple[np.ndarray, np.ndarray]:
    """(score, held) for all guesses along the texts."""
    scores = np.concatenate([one.chain.along.scores[column] for one in recorded])
    return scores, np.concatenate([held(one.chain) for one in recorded])


def everywhere(chain: Chain, column: str) -> tuple[np.ndarray, np.ndarray]:
    """(p, score) for all guesses that a policy can see: along the text and after each mistake."""
    p = np.concatenate([np.array(one.p) for one in chain.lists()])
    return p, np.concatenate([np.array(one.scores[column]) for one in chain.lists()])


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
