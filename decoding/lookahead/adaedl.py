"""adaedl: a threshold on an entropy-based estimate, controlled towards a target acceptance rate.

Source: AdaEDL (Agrawal et al. 2024, arXiv 2410.18351), whose update is that of Draft & Verify (Zhang et al. 2024, arXiv
2309.08168). With H the entropy (nats) of the draft's distribution for the last token, 1 - sqrt(gamma H) estimates the
probability that the token is accepted: with the unknown cross-entropy in place of H it would be a lower bound, by
Pinsker's inequality. Draft on while

    1 - sqrt(gamma H) >= lam,    gamma = 0.2,

and after each verification adjust lam by the smoothed acceptance rate A and the target rate w:

    A <- A/2 + (accepted / drafted) / 2; lam <- lam + step if A < w; lam - step if A >= w, unless the cap ended the
    drafting.

w = 0.9 is published. The published step is 0.001 (0.01, of which 0.9 is smoothed away) for texts of many hundred
iterations, and the papers note that the initial lam matters. Here a text has some dozen iterations, so STEP is larger
and the initial value matters less. The token below the threshold is still verified.
"""

from __future__ import annotations

from math import sqrt

from .base import SL_CAP, LaneContext, ThresholdPolicy
from .spec import TWENTIETHS, Argument, PolicySpec, Score

GAMMA = 0.2
WANTED = 0.9
FIRST = 0.4
STEP = 0.02


class AdaEdl(ThresholdPolicy):
    """Stops below a threshold that follows the acceptance rate."""

    name = "adaedl"
    needs = frozenset({"entropy"})

    def __init__(self, wanted: float = WANTED) -> None:
        super().__init__(FIRST)
        self._wanted = wanted

    def reset(self, context: LaneContext) -> None:
        self._threshold = FIRST
        self._rate = self._wanted

    def judge(self, value: float) -> float:
        return 1.0 - sqrt(GAMMA * max(value, 0.0))

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        if n_drafted == 0:
            return  # the limit left no room to draft: nothing to learn
        self._rate = 0.5 * self._rate + 0.5 * n_accepted / n_drafted
        if self._rate < self._wanted:
            self._threshold += STEP
        elif n_drafted < SL_CAP:
            self._threshold -= STEP
        self._threshold = min(max(self._threshold, 0.0), 1.0)


SPEC = PolicySpec(
    AdaEdl,
    title="AdaEDL",
    caption="keeps guessing while the small model is sure; learns how sure, so that {argument} of all guesses hold",
    source="AdaEDL (Agrawal et al. 2024), Draft & Verify (Zhang et al. 2024)",
    order=70,
    argument=Argument("wanted acceptance rate", 0.0, 1.0, "adaedl:0.8", default=WANTED, sweep=TWENTIETHS),
    score=Score(
        "The score estimates, from the entropy of the small model's choice, the chance that the guess holds. Below the "
        "line, the policy stops and checks. After each check the line moves towards the wanted share of guesses that "
        "hold.",
        along=lambda guesses: [-entropy for entropy in guesses.entropy],
        fixed=False,
    ),
)
