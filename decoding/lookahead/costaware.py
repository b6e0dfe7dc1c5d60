"""costaware: draft another token while it is expected to save more time than it costs.

An iteration that drafts n > 0 tokens takes T = first + n (c + d) + v(n + 1) + o (in target passes; d: features and
decision; first: the extra cost of the first draft step) and gives N = 1 + (accepted) tokens. Iterations renew the
process, so by the renewal-reward theorem the long-run time per token of a policy is E[T] / E[N]; let lam be its minimum
over all policies. Then min over policies of E[T - lam N] is 0, and a policy attains lam exactly if it attains that
minimum: within an iteration it pays time and earns lam per token. With n tokens drafted, one more costs

    m(n) = c + d + (step of v there)

and adds a token exactly if all n drafted ones hold *and the next one holds*; with S that probability given all
observations,

    draft on  <=>  S * lam > m(n)  <=>  S > m(n) / lam.

The steps of v are the measured ones, made non-decreasing by isotonic regression: some passes cost the same for several
numbers of tokens, and more from the next on. So m never decreases, while S decreases with every token, apart from small
changes of b: once the policy stops it would stop at later tokens too. In this "monotone case" one-step lookahead is
optimal (Chow and Robbins, 1961), and here it is a good approximation. The first token is an exception: it pays
``first`` and the step from v(1) to v(2) for all that follow. Drafting at all pays if the policy's lam is below plain
decoding's v(1) + o; then the first token is treated like the others, otherwise the policy never drafts. lam follows,
for the current costs, from the validation split's ledger, which counts how often the policy drafted n tokens at each of
several constant thresholds: it is the least latency among them, which is flat there.

S = a_1 ... a_n b, with a_i the probability that token i holds given that those before it hold, and b that of the next
token, not yet drafted. Both follow from the head's probability h of the last token and the recent match rate r:

    logit a = alpha + beta logit h + gamma r,    and b with coefficients of its own.

r is a moving average of whether guesses hold, with the drafted tokens counted as right: h judges a token, r says how
well this draft has done in this text lately. Before the first token, b depends on how the last iteration ended.

The head (:mod:`.costaware_heads`) reads how sure the draft is of its token, whether the token continues a repetition of
the text and, where the draft has counts of its training text, how often such a sequence of tokens occurs there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..records.trace import Costs
from .base import SL_CAP, SL_CAP_LEARNED, DraftState, LaneContext, LookaheadPolicy
from .costaware_heads import CostAwareHead, NetworkHead, TableHead
from .disco import sigmoid
from .heads import Architecture, Weights
from .repetition import Repetition
from .spec import Argument, PolicySpec, Score

CAUTION = 0.5, 2.0  # range of the factor on the line
UNREACHABLE = 1e9  # a line that no chance crosses, at any caution
RECENT = 0.1  # weight of the latest guess in the recent match rate
Coefficients = tuple[float, float, float]  # alpha, beta, gamma


class Row(NamedTuple):
    """A policy's SLs on the validation split at a threshold, from which its latency on any machine follows, with the
    cost curves there (c, v, o, decision): so costaware knows without the chains what a token costs it at its best.

    ``histogram[n]``: number of iterations that drafted n tokens; ``n_tokens``: tokens of all of them.
    """

    threshold: float
    n_tokens: int
    histogram: tuple[int, ...]

    def latency(self, costs: Costs, draft: str | None, policy: str) -> float:
        """Time per token in units of a target pass over one token."""
        total = sum(count * costs.iteration(n, draft, policy) for n, count in enumerate(self.histogram) if count)
        return total / self.n_tokens


def rows_from_json(data: Any) -> list[Row]:
    """The rows of a ledger. Raises TypeError or ValueError if ``data`` is none."""
    rows = [Row(float(t), int(n), tuple(int(count) for count in counts)) for t, n, counts in data]
    if not rows or any(row.n_tokens < 1 or not sum(row.histogram) for row in rows):
        raise ValueError("an empty ledger")
    return rows


def chance(coefficients: Coefficients, h: float, recent: float) -> float:
    """The probability with logit alpha + beta logit h + gamma recent; an h of 0 or 1 stays as it is."""
    if h <= 0.0 or h >= 1.0:
        return h
    alpha, beta, gamma = coefficients
    return sigmoid(alpha + beta * math.log(h / (1.0 - h)) + gamma * recent)


def updated(recent: float, held: bool) -> float:
    """The recent match rate after one more guess."""
    return recent + RECENT * (held - recent)


class CostAware(LookaheadPolicy):
    """Drafts on while S > m(n) / lam; see the module."""

    name = "costaware"

    def __init__(self, caution: float, head: CostAwareHead, threshold: float | None = None) -> None:
        """``caution``: the factor on the line. ``threshold``: a constant instead of the line, with which ``fit`` fills
        the ledger.
        """
        tuned = head.tuned
        self._caution = caution
        self._head = head
        self.needs = head.needs
        self._constant = threshold
        self._rows = rows_from_json(tuned["ledger"]) if threshold is None else []
        self.cap = int(tuned["sl_max"])
        self._this, self._next = (_coefficients(tuned[name]) for name in ("this", "next"))
        self._first = {last: float(tuned["first"][last]) for last in ("start", "held", "missed")}
        self._usual = float(tuned["recent"])

    def reset(self, context: LaneContext) -> None:
        self.score = self.threshold = None
        self._repetition = Repetition()
        self._repetition.follow(context.prompt)
        self._read = len(context.prompt)  # tokens of the text that the repetition has read and that are final
        self._last = "start"
        self._held = 1.0
        self._recent = self._assumed = self._usual
        self._evidence = 0
        self._levels: Sequence[int] = ()
        assert context.draft is not None, "a learned policy belongs to a draft"
        if self._constant is None:
            self._thresholds = thresholds(self._rows, context.costs, context.draft, self._caution)
        else:
            self._thresholds = [self._constant] * (SL_CAP_LEARNED + 1)

    def needs_features(self, state: DraftState) -> bool:
        """Reads the new text, which determines whether the lead is needed."""
        if len(state.tokens) == 1:
            self._repetition.follow(state.text, self._read)
            self._read = len(state.text)
        token = state.tokens[-1]
        self._evidence = self._repetition.evidence(token)
        needs = self._head.needs_lead(self._evidence)
        if needs:
            self._levels = self._head.levels(self._repetition.end, token)
        self._repetition.push(token)
        return needs

    def should_draft(self, state: DraftState) -> bool:
        n = len(state.tokens)
        if n == 0:
            self._held, self._assumed = 1.0, self._recent
            score = self._first[self._last]
        else:
            h = self._judged(state)
            self._held *= chance(self._this, h, self._assumed)
            self._assumed = updated(self._assumed, True)
            score = self._held * chance(self._next, h, self._assumed)
        self.score, self.threshold = score, self._thresholds[min(n, SL_CAP_LEARNED)]  # what-if may go on past any cap
        return score > self.threshold

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        # None drafted counts as held, so that a policy that has given up drafts again some time.
        self._last = "held" if n_accepted == n_drafted else "missed"
        for _ in range(n_accepted):
            self._recent = updated(self._recent, True)
        if n_accepted < n_drafted:
            self._recent = updated(self._recent, False)

    def _judged(self, state: DraftState) -> float:
        """h of the last drafted token."""
        if state.known:
            return state.known[-1]
        return sigmoid(self._head.logit(self._evidence, self._leads(state), self._levels))

    def _leads(self, state: DraftState) -> list[float]:
        """Of the last drafted token; of an earlier one, or 0, where they do not matter."""
        columns = ((lead_of, getattr(state, name)) for name, lead_of in self._head.features.items())
        return [lead_of(values[-1]) if values else 0.0 for lead_of, values in columns]


def _coefficients(values: Sequence[float]) -> Coefficients:
    alpha, beta, gamma = map(float, values)
    return alpha, beta, gamma


def marginals(costs: Costs, draft: str) -> list[float]:
    """m(n), the cost of drafting one more token after n of them, in target passes; n = 0 .. SL_CAP_LEARNED."""
    step = costs.draft_step[draft] + costs.decision.get(CostAware.name, 0.0)
    rises = rises_of(costs)
    return [step + max(0.0, rises[min(max(n, 1), len(rises)) - 1]) for n in range(SL_CAP_LEARNED + 1)]


def rises_of(costs: Costs) -> list[float]:
    """How much v rises from n + 1 to n + 2 tokens, n = 1 .. SL_CAP - 1, along the greatest convex curve under it.

    These are the isotonic regression of v's own rises (Barlow et al. 1972), each the largest of the least slopes of the
    chords over it.
    """
    v = [costs.verify(n) for n in range(2, SL_CAP + 2)]
    rises = range(len(v) - 1)
    return [max(min((v[k] - v[j]) / (k - j) for k in range(i + 1, len(v))) for j in range(i + 1)) for i in rises]


def least_latency(rows: Sequence[Row], costs: Costs, draft: str) -> float:
    """lam: the least latency among the ledger's thresholds, in target passes per token."""
    return min(row.latency(costs, draft, CostAware.name) for row in rows)


def lines(rows: Sequence[Row], costs: Costs, draft: str) -> list[float]:
    """m(n) / lam for n = 0 .. SL_CAP_LEARNED; UNREACHABLE throughout if plain decoding is cheaper than the policy at
    its best.
    """
    lam = least_latency(rows, costs, draft)
    drafts = lam < costs.iteration(0, None)
    return [m / lam if drafts else UNREACHABLE for m in marginals(costs, draft)]


def thresholds(rows: Sequence[Row], costs: Costs, draft: str, caution: float = 1.0) -> list[float]:
    """``caution`` times the lines, at most 1, which no chance exceeds."""
    return [min(1.0, caution * line) for line in lines(rows, costs, draft)]


def head_from(weights: Weights, architecture: Architecture, tuned: dict[str, Any]) -> CostAwareHead:
    """A table, if the weights are one, else a network."""
    if "table" in weights:
        return TableHead(weights, architecture, tuned)
    return NetworkHead(weights, architecture, tuned)


SPEC = PolicySpec(
    CostAware,
    title="Cost-aware",
    caption="keeps guessing while one more guess is expected to save more time than it costs",
    source="ours",
    order=100,
    argument=Argument(
        "caution",
        *CAUTION,
        "costaware:1.1",
        tuned=(0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4),
        effect="with caution {}",
    ),
    score=Score(
        "The score is the probability that all guesses of this iteration and the next guess hold. The line is the "
        "cost of one more guess, divided by the policy's average cost of a token on validation prompts, times a factor "
        "(its caution). Below the line, the policy stops and checks.",
        judges_last=False,
        fixed=False,
    ),
    head_from=head_from,
)
