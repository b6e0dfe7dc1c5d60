"""bandit: exponential weights over SLs, updated by what each SL would have gained in the last iteration.

Verifying n guesses, of which a held, reveals the outcome of every shorter SL and, if a guess failed (a < n), of every
longer one: SL k would have given 1 + min(a, k) tokens at the cost T(k) under the run's cost curves. This is learning
with full information, for which exponential weights apply (Hedge: Freund and Schapire, 1997; HedgeSpec, arXiv
2510.20064, uses them over drafters). BanditSpec (arXiv 2505.15141) and TapOut (arXiv 2511.02017) learn only about the
arm played (UCB; BanditSpec EXP3, too). With lam the lane's time per token so far, the loss of SL k is

    loss_k = T(k) - lam (1 + min(a, k)),

its cost minus the time that its tokens are worth; the policy with the least loss has the least time per token
(renewal-reward, as in :mod:`.costaware`). If all n guesses held, the outcome of longer SLs is unknown: a in their
losses is then n + q + q^2 + ..., where q is the share of guesses that held so far.

The weights are exp(-eta L_k), L_k the sum of the losses of SL k, and the SL is their mean, rounded: T is nearly linear
and -min(a, k) is convex in k, so the mean is no worse than a draw by the weights (Cesa-Bianchi and Lugosi, 2006,
section 2.1), and replays are deterministic. The learning rate eta = ln(K) / (sum of the mixability gaps so far) needs
no tuning (AdaHedge: de Rooij, van Erven, Grunwald and Koolen, 2014, JMLR 15, section 2.2).
"""

from __future__ import annotations

import math

import numpy as np

from .base import SL_CAP, LaneContext, PlannedPolicy
from .spec import PolicySpec

FIRST_SL = 5  # before the first verification
ARMS = np.arange(1, SL_CAP + 1)


class Bandit(PlannedPolicy):
    """Plans each iteration by exponential weights over SL 1 to SL_CAP."""

    name = "bandit"

    def reset(self, context: LaneContext) -> None:
        costs = context.costs
        self._cost = np.array([costs.iteration(int(k), context.draft, self.name) for k in ARMS])
        self._spent, self._tokens = costs.iteration(0, None), 1.0  # one plain pass, so that lam is always defined
        self._held, self._judged = 1, 2  # guesses; q starts at one half
        self._losses = np.zeros(SL_CAP)
        self._gap = 0.0  # AdaHedge's Delta
        self._sl = FIRST_SL
        self._outcome: tuple[int, int] | None = None

    def planned(self, start: int) -> int:
        if self._outcome is not None:  # learn here, where the time counts as the policy's
            self._learn(*self._outcome)
            self._sl = int(self._weights() @ ARMS + 0.5)
            self._outcome = None
        return self._sl

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        if n_drafted:  # else the limit left no room to draft: nothing to learn
            self._outcome = min(n_drafted, SL_CAP), min(n_accepted, SL_CAP)

    def _learn(self, n_drafted: int, n_accepted: int) -> None:
        self._spent += self._cost[n_drafted - 1]
        self._tokens += 1 + n_accepted
        self._held += n_accepted
        self._judged += min(n_accepted + 1, n_drafted)
        self._hedge(self._cost - self._spent / self._tokens * (1 + self._accepted(n_drafted, n_accepted)))

    def _accepted(self, n_drafted: int, n_accepted: int) -> np.ndarray:
        """Number of guesses that each SL would have had accepted: known, or expected if all drafted ones held."""
        accepted = np.minimum(n_accepted, ARMS).astype(float)
        if n_accepted == n_drafted:
            accepted[n_drafted:] += np.cumsum((self._held / self._judged) ** ARMS[: SL_CAP - n_drafted])
        return accepted

    def _hedge(self, loss: np.ndarray) -> None:
        """One step of AdaHedge: the loss of the weights beyond the mix loss lowers the learning rate."""
        expected = self._weights() @ loss
        eta = self._eta()
        before = _soft_minimum(self._losses, eta)
        self._losses += loss
        self._gap += max(0.0, expected - (_soft_minimum(self._losses, eta) - before))

    def _weights(self) -> np.ndarray:
        behind = self._losses - self._losses.min()
        weights = (behind <= 0.0).astype(float) if self._gap == 0.0 else np.exp(-self._eta() * behind)
        return weights / weights.sum()

    def _eta(self) -> float:
        return math.log(SL_CAP) / self._gap if self._gap else math.inf


def _soft_minimum(losses: np.ndarray, eta: float) -> float:
    """-ln(sum of exp(-eta loss)) / eta; the least loss if eta is infinite."""
    least = losses.min()
    return least if math.isinf(eta) else least - math.log(np.exp(-eta * (losses - least)).sum()) / eta


SPEC = PolicySpec(
    Bandit,
    title="Bandit",
    caption="estimates from each check what every SL would have gained, and moves towards the best so far",
    source="AdaHedge (2014) over SLs, after BanditSpec and TapOut (2025)",
    order=40,
)
