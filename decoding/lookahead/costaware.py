"""costaware: draft another token while it is expected to save more time than it costs.

An iteration that drafts n > 0 tokens takes T = first + n (c + d) + v(n + 1) + o (in target passes; d: features and
decision; first: the extra cost of the first draft step) and gives N = 1 + (accepted) tokens. Iterations renew the
process, so by the renewal-reward theorem the long-run time per token of a policy is E[T] / E[N]; let lam be its minimum
over all policies. Then min over policies of E[T - lam N] is 0, and a policy attains lam exactly if it attains that
minimum: within an iteration it pays time and earns lam per token. One more draft costs

    m = c + d + (slope of v)

and adds a token exactly if all n drafted ones hold *and the next one holds*; with S that probability given all
observations,

    draft on  <=>  S * lam > m  <=>  S > m / lam.

The slope is v's over its whole range, by least squares: its single steps are noise. S is a product that decreases with
every token while m is constant: once the policy stops it would stop at every later token too. In this "monotone case"
one-step lookahead is optimal (Chow and Robbins, 1961). The first token is an exception: it pays ``first`` and the step
from v(1) to v(2) for all that follow. Drafting at all pays exactly if the policy's lam is below plain decoding's v(1) +
o; then the first token is treated like the others, otherwise the policy never drafts. lam is a fixed point: the latency
of the policy with the threshold m / lam. For the current costs it follows from the validation split's ledger, which
counts how often the policy drafted n tokens at each threshold.

S = a_1 ... a_n b, with a_i the calibrated probability that token i holds given that those before it hold, and b that of
the next token, not yet drafted: logit b = alpha + beta logit a_n. Before the first token, b depends on how the last
iteration ended.

The head reads two cheap features: how much the draft prefers its token to the next best one (``margin``, which needs no
softmax and predicts acceptance under greedy decoding better than the probability does), and whether the token continues
a repetition of the text (:mod:`.repetition`). A small network was trained on them; its logits are stored as a table. In
a long repetition the margin adds no information: there the table's rows are flat, and a live lane does not compute it.
Validation latency decides from which length on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from ..records.trace import Costs
from .base import SL_CAP, SL_CAP_LEARNED, DraftState, LaneContext, LookaheadPolicy
from .disco import sigmoid
from .heads import GuessFeatures
from .ledger import Row, rows_from_json
from .policy_files import AGAIN, PolicyFile
from .repetition import LONGEST, N_EVIDENCE, Repetition, evidence_along
from .spec import PolicySpec, Score

LOWEST, HIGHEST, POINTS_PER_UNIT = -6.0, 14.0, 4  # margins in the table; only sampled tokens have one below 0
N_POINTS = int((HIGHEST - LOWEST) * POINTS_PER_UNIT) + 1
ROUNDS = 50


class CostAwareHead:
    """Acceptance logits by (evidence of repetition, margin), interpolated linearly."""

    name = "costaware"
    needs = frozenset({"margin"})

    def __init__(self, table: np.ndarray, tuned: dict[str, Any]) -> None:
        """``table`` [N_EVIDENCE, N_POINTS] float32."""
        self.tuned = tuned
        self._rows: list[list[float]] = table.tolist()  # Python floats: one cell is read at a time
        self._sure = _first_flat(self._rows)

    def needs_margin(self, evidence: int) -> bool:
        """False if the repetition alone determines the chance."""
        return not self._sure <= evidence <= LONGEST

    def logit(self, evidence: int, margin: float) -> float:
        """Logit of the probability that a token holds whose lead is ``margin`` nats."""
        row = self._rows[evidence]
        if self._sure <= evidence <= LONGEST:
            return row[0]
        at = grid_position(margin)
        left = int(at)
        if left >= N_POINTS - 1:
            return row[-1]
        low = row[left]
        return low + (at - left) * (row[left + 1] - low)

    def score_chain(self, features: GuessFeatures) -> np.ndarray:
        """See :class:`~decoding.lookahead.heads.Head`."""
        evidence = evidence_along(features.before, features.given, features.guess)
        seen = zip(evidence, features.needed("margin"), strict=True)
        logits = [self.logit(code, float(margin)) for code, margin in seen]
        return np.array([sigmoid(logit) for logit in logits])


def _first_flat(rows: Sequence[Sequence[float]]) -> int:
    """The run of agreeing tokens from which on no row depends on the margin; LONGEST + 1 if the longest does."""
    first = LONGEST + 1
    while first > 1 and min(rows[first - 1]) == max(rows[first - 1]):
        first -= 1
    return first


def grid_position(margin: float) -> float:
    """Position of ``margin`` in the table, from 0 to N_POINTS - 1."""
    return (min(max(margin, LOWEST), HIGHEST) - LOWEST) * POINTS_PER_UNIT


class CostAware(LookaheadPolicy):
    """Drafts on while S > m / lam; see the module."""

    name = "costaware"
    needs = CostAwareHead.needs

    def __init__(self, head: CostAwareHead, threshold: float | None = None) -> None:
        """``threshold``: a constant instead of m / lam, with which ``fit`` fills the ledger."""
        self._head = head
        self._constant = threshold
        self.cap = int(head.tuned["sl_max"])
        self._alpha, self._beta = head.tuned["next"]
        self._first: dict[str, float] = head.tuned["first"]

    def reset(self, context: LaneContext) -> None:
        self.score = self.threshold = None
        self._repetition = Repetition()
        self._repetition.follow(context.prompt)
        self._read = len(context.prompt)  # tokens of the text that the repetition has read and that are final
        self._last = "start"
        self._held = 1.0
        self._evidence = 0
        self._threshold = self._cheapest(context) if self._constant is None else self._constant

    def _cheapest(self, context: LaneContext) -> float:
        assert context.draft is not None, "a learned policy belongs to a draft"
        return threshold(rows_from_json(self._head.tuned["ledger"], self.name), context.costs, context.draft)

    def looks(self, state: DraftState) -> bool:
        """Reads the new text, which determines whether the margin is needed."""
        if len(state.tokens) == 1:
            self._catch_up(state.text)
        token = state.tokens[-1]
        self._evidence = self._repetition.evidence(token)
        self._repetition.push(token)
        return self._head.needs_margin(self._evidence)

    def should_draft(self, state: DraftState) -> bool:
        n = len(state.tokens)
        if n == 0:
            self._held = 1.0
            score = self._first[self._last]
        else:
            a = self._acceptance(state)
            self._held *= a
            score = self._held * self._next(a)
        self.score, self.threshold = score, self._threshold
        return score > self._threshold

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        self._last = "held" if n_accepted == n_drafted else "missed"

    def _acceptance(self, state: DraftState) -> float:
        known = state.scores.get("costaware")
        if known:
            return known[-1]
        margin = state.margin[-1] if state.margin else 0.0  # of an earlier token, or absent, if it does not matter
        return sigmoid(self._head.logit(self._evidence, margin))

    def _catch_up(self, text: Sequence[int]) -> None:
        """Takes back rejected drafts of the last iteration and reads the text that replaced them."""
        repetition = self._repetition
        repetition.rewind(repetition.agreeing(text, self._read))
        repetition.follow(text)
        self._read = len(text)

    def _next(self, a: float) -> float:
        """b: the chance of the next, undrafted token, from the chance of the one before."""
        if a <= 0.0 or a >= 1.0:
            return a
        return sigmoid(self._alpha + self._beta * math.log(a / (1.0 - a)))


def marginal(costs: Costs, draft: str) -> float:
    """m: the cost of drafting one more token, in target passes."""
    return costs.c[draft] + costs.decision.get(CostAware.name, 0.0) + _slope(costs)


def _slope(costs: Costs) -> float:
    """Least-squares slope of v(n) over n = 2 .. SL_CAP + 1."""
    n = np.arange(2, SL_CAP + 2)
    return float(np.polyfit(n, [costs.check(int(one)) for one in n], 1)[0])


def long_run_latency(rows: Sequence[Row], costs: Costs, draft: str) -> float:
    """lam: the fixed point lam = latency(threshold m / lam), in target passes per token, interpolated linearly between
    the rows.
    """
    order = sorted(rows, key=lambda row: row.threshold)
    at = [row.threshold for row in order]
    latencies = [row.latency(costs, draft, CostAware.name) for row in order]
    lam = min(latencies)
    m = marginal(costs, draft)
    for _ in range(ROUNDS):
        lam = 0.5 * (lam + float(np.interp(m / lam, at, latencies)))
    return lam


def threshold(rows: Sequence[Row], costs: Costs, draft: str) -> float:
    """m / lam; 1, which no chance exceeds, if plain decoding is cheaper than the policy at its best."""
    lam = long_run_latency(rows, costs, draft)
    return min(1.0, marginal(costs, draft) / lam) if lam < costs.iteration(0, None) else 1.0


def _is_sound(first: object, following: object) -> bool:
    """Whether these are the chances of an iteration's first token and the two coefficients of b."""
    if not isinstance(first, dict) or not isinstance(following, list) or len(following) != 2:
        return False
    numbers = [*first.values(), *following]
    known = {"start", "held", "missed"} <= set(first)
    return known and all(isinstance(x, int | float) and math.isfinite(x) for x in numbers)


def _head_from(policy: PolicyFile) -> CostAwareHead:
    """The head in a policy file. Raises UserError if the file is damaged."""
    if not _is_sound(policy.tuned.get("first"), policy.tuned.get("next")):
        raise UserError(f"The file of the policy costaware is damaged: {AGAIN}.")
    policy.chosen("sl_max", 1, SL_CAP_LEARNED)
    rows_from_json(policy.tuned.get("ledger"), "costaware")
    return CostAwareHead(policy.weight("table", N_EVIDENCE, N_POINTS), policy.tuned)


SPEC = PolicySpec(
    name="costaware",
    title="Cost-aware",
    caption="guesses on while one more guess gains more time than it costs",
    source="ours",
    make=CostAware,
    order=100,
    offered=("costaware",),
    evaluated=("costaware",),
    score=Score(
        "The score is the probability that all guesses of this round and the next one hold. The line is the cost of "
        "one more guess over the average cost of a token, both measured: under it, the policy stops and checks.",
        judges_last=False,
        fixed=False,
    ),
    head_from=_head_from,
)
