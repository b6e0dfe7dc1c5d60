"""adaedl: a threshold on an entropy-based estimate, controlled towards a target acceptance rate.

Source: AdaEDL (Agrawal et al. 2024, arXiv 2410.18351), whose update is that of Draft & Verify (Zhang et al. 2024, arXiv
2309.08168). With C the unknown cross-entropy of draft and target (nats), 1 - sqrt(C / 2) is a lower bound of the
probability that the last token is accepted, by Pinsker's inequality; gamma H, with H the entropy of the draft's
distribution, is an estimate of C / 2. Draft on while

    1 - sqrt(gamma H) >= lam,    gamma = 0.2,

and after each verification adjust lam by the smoothed acceptance rate A and the target rate w:

    A <- A/2 + (accepted / drafted) / 2; lam <- lam + step if A < w; lam - step if A >= w, unless the cap ended the
    drafting (as in Draft & Verify; AdaEDL: unless as many as the cap were accepted).

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
    caption="keeps guessing while the small model is sure; adjusts how sure, aiming at {argument} of guesses accepted",
    source="AdaEDL (Agrawal et al. 2024), Draft & Verify (Zhang et al. 2024)",
    order=70,
    argument=Argument("wanted acceptance rate", 0.0, 1.0, "adaedl:0.8", default=WANTED, sweep=TWENTIETHS),
    score=Score(
        "The score estimates, from the entropy of the small model's choice, the chance that the guess holds. Below the "
        "line, the policy stops and checks. After each check the line rises if fewer guesses held lately than wanted, "
        "else it falls.",
        along=lambda guesses: [-entropy for entropy in guesses.entropy],
        fixed=False,
    ),
)
