"""What-if: replays a recorded chain with another policy, SL or costs, without a model.

A policy on greedy (or coupled) text can only see what the :class:`~decoding.records.trace.Chain` holds: the draft's
guesses along the target's text and, after each wrong one, its continuation. So the replay drives the same policy
objects as the live loop, and its iterations are those of the live lane.

SL of an iteration = min(policy, cap, tokens still wanted - 1), as in the loop. Drafting also ends with the chain's
guesses: a tail that is shorter than the longest cap ends with the draft's end of sequence, and a choice of None means
that the draft had nothing to propose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat

from ..errors import UserError
from ..lookahead.base import DraftState, LaneContext, LookaheadPolicy
from ..lookahead.fitted import heads_of, make_policy
from ..lookahead.heads import Head
from ..lookahead.lanes import Lane, expand_lanes
from ..records.generate import why_no_chain
from ..records.trace import Chain, Costs, Finish, Guesses, Run
from .counts import Counts
from .run_costs import run_costs

MAX_RATIO = 1_000_000  # of a draft step to a target pass
AT_ONCE = 10
"""A first step that costs more than so many of the others makes their guesses as well."""


@dataclass(slots=True)
class Simulated:
    """A simulated lane. ``iterations`` are (start, guesses, accepted); costs in units of ``target_s``."""

    iterations: list[tuple[int, int, int]]
    n_tokens: int
    cost: float
    speedup: float  # over the autoregressive lane at the same costs
    steps: list[int] | None = None  # draft passes of each iteration; None for chains: one for each guess

    @classmethod
    def priced(
        cls,
        iterations: list[tuple[int, int, int]],
        chain: Chain,
        costs: Costs,
        policy: str,
        steps: list[int] | None = None,
    ) -> Simulated:
        """The iterations of ``policy`` on the chain's text. Each costs ``first + d c + n decision + v(n + 1) + o``; the
        speedup is ``n_tokens (v(1) + o) / cost``.
        """
        sizes = Counter(zip((n for _, n, _ in iterations), repeat(None) if steps is None else steps))
        cost = sum(times * costs.iteration(n, chain.draft, policy, passes) for (n, passes), times in sizes.items())
        plain = len(chain.target) * costs.iteration(0, None)
        return cls(iterations, len(chain.target), cost, plain / cost if cost else 1.0, steps)

    @property
    def counts(self) -> Counts:
        drafted = sum(n for _, n, _ in self.iterations)
        draft_passes = drafted if self.steps is None else sum(self.steps)
        accepted = sum(n for _, _, n in self.iterations)
        return Counts(len(self.iterations), drafted, draft_passes, accepted, self.n_tokens)


@dataclass
class Replay:
    """A text with the chain of a draft along it, and how it ended: all that is needed to replay policies on it.

    ``max_new_tokens``: the token limit (requested or left by the context); it matters where ``finish`` says that the
    text ended before it.
    """

    chain: Chain
    max_new_tokens: int = 0
    finish: Finish = "length"

    @classmethod
    def of_run(cls, run: Run, draft: str) -> Replay:
        """The text of ``run`` with the chain of ``draft``."""
        return cls(run.chains[draft], *ending(run))

    @property
    def n_tokens(self) -> int:
        return len(self.chain.target)

    @property
    def wanted(self) -> int:
        """Tokens that the text might have had."""
        return max(self.n_tokens, self.max_new_tokens) if self.finish in ("eos", "stop") else self.n_tokens

    @cached_property
    def holds(self) -> list[int]:
        """By output position, and 0 after the text: how many guesses of an iteration there hold."""
        return [*map(self.chain.holds, range(self.n_tokens)), 0] if self.chain.starts else _runs_that_hold(self.chain)

    @cached_property
    def reach(self) -> list[int]:
        """By output position: how many guesses of an iteration there exist."""
        return [self._reach(start) for start in range(self.n_tokens)]

    def _reach(self, start: int) -> int:
        if self.chain.starts:
            return _n_guesses(self.chain.starts[start])
        held = self.holds[start]
        end = start + held
        if end == self.n_tokens:  # all hold to the end of the text: the guesses after its last token
            return held + _n_guesses(self.chain.tails.get(end - 1))
        if self.chain.along.choice[end] is None:
            return held
        return held + 1 + _n_guesses(self.chain.tails.get(end))

    def guess(self, start: int, index: int) -> tuple[Guesses, int]:
        """The place of the ``index``-th guess of an iteration at ``start``: (its list, its index there)."""
        if self.chain.starts:
            return self.chain.starts[start], index
        held = self.holds[start]
        if start + held == self.n_tokens:
            held -= 1
        if index <= held:
            return self.chain.along, start + index
        return self.chain.tails[start + held], index - held - 1

    def simulate(self, costs: Costs, policy: LookaheadPolicy, paid: Costs | None = None) -> Simulated:
        """The iterations of ``policy`` on the text, and their cost.

        Args:
            costs: the cost curves that the policy weighs.
            paid: what the iterations cost, where that is known better (:func:`run_costs`); by default ``costs``.
        """
        policy.reset(LaneContext(self.chain.draft, costs, self.wanted, self.chain))
        return Simulated.priced(list(_iterate(self, policy)), self.chain, paid or costs, policy.name)


def _runs_that_hold(chain: Chain) -> list[int]:
    holds = [0] * (len(chain.target) + 1)
    for at in range(len(chain.target) - 1, -1, -1):
        holds[at] = holds[at + 1] + 1 if chain.along.choice[at] == chain.target[at] else 0
    return holds


def _n_guesses(tail: Guesses | None) -> int:
    if tail is None:
        return 0
    return next((i for i, choice in enumerate(tail.choice) if choice is None), len(tail.choice))


def _iterate(replay: Replay, policy: LookaheadPolicy) -> Iterator[tuple[int, int, int]]:
    state, start, wanted = DraftState(), 0, replay.wanted
    while start < replay.n_tokens:
        most = min(wanted - start - 1, replay.reach[start])
        if policy.cap is not None:
            most = min(most, policy.cap)
        planned = policy.planned(start)
        drafted = _draft(replay, policy, state, start, most) if planned is None else max(0, min(planned, most))
        accepted = min(drafted, replay.holds[start])
        policy.observe(drafted, accepted)
        yield start, drafted, accepted
        start += accepted + 1


def _draft(replay: Replay, policy: LookaheadPolicy, state: DraftState, start: int, most: int) -> int:
    """Asks the policy before each draft step, as the loop does; returns the SL."""
    state.begin(start)
    drafted = 0
    while drafted < most and policy.should_draft(state):
        guesses, at = replay.guess(start, drafted)
        choice = guesses.choice[at]
        assert choice is not None, "the draft's reach ends where it proposes nothing"
        state.tokens.append(choice)
        state.p.append(guesses.p[at])
        state.entropy.append(guesses.entropy[at])
        if policy.name in guesses.scores:
            state.known.append(guesses.scores[policy.name][at])
        drafted += 1
    return drafted


def with_draft_step(costs: Costs, draft: str, step: float) -> Costs:
    """``costs`` with another c of ``draft``, with which its first step scales. Of a draft that makes all guesses of an
    iteration with the first, ``step`` is what they cost together.
    """
    first, known = costs.first_step.get(draft, 0.0), costs.draft_step[draft]
    if guesses_at_once(costs, draft):
        return replace(costs, first_step={**costs.first_step, draft: step})
    scaled = first * step / known if known else 0.0
    return replace(costs, draft_step={**costs.draft_step, draft: step}, first_step={**costs.first_step, draft: scaled})


def guesses_at_once(costs: Costs, draft: str) -> bool:
    """Whether the draft makes all guesses of an iteration in its first step (parallel heads, a block)."""
    return costs.first_step.get(draft, 0.0) > AT_ONCE * costs.draft_step.get(draft, 0.0)


def sweep(
    run: Run, lanes: str | Iterable[Lane], cost_ratio: float | None = None, heads: Mapping[str, Head] | None = None
) -> dict[str, Simulated]:
    """Simulates ``lanes``, also of a text with ranges ("static:1..16"), on the text of ``run``: they decide by the
    recorded curves and pay the run's own costs.

    Args:
        cost_ratio: another c for each lane's draft, which it weighs and pays; see :func:`with_draft_step`.
        heads: fitted heads of the lanes' draft, which the learned policies need; None: those that are installed.

    Raises:
        UserError: the run has no chain for a lane's draft, a learned policy has no head, or the ratio is none.
    """
    if cost_ratio is not None and not 0.0 <= cost_ratio <= MAX_RATIO:
        raise UserError(f"The cost ratio must be a number from 0 to {MAX_RATIO:,}, not {cost_ratio}.")
    replays: dict[str, Replay] = {}
    found, own = {}, run_costs(run)
    for lane in expand_lanes(lanes) if isinstance(lanes, str) else lanes:
        draft = _draft_of(run, lane)
        replay = replays.get(draft) or replays.setdefault(draft, Replay.of_run(run, draft))
        paid = own if cost_ratio is None else with_draft_step(own, draft, cost_ratio)
        weighed = run.costs if cost_ratio is None else paid
        fitted = heads_of(run, draft) if heads is None and lane.is_learned else heads
        if lane.is_learned and lane.policy not in replay.chain.along.scores:
            raise UserError(f"This run was recorded without {lane.policy}'s scores: run its prompt again.")
        found[lane.text] = replay.simulate(weighed, make_policy(lane, fitted), paid)
    return found


def ending(run: Run) -> tuple[int, Finish]:
    """The token limit of the text of ``run``, and how it ended."""
    limit = run.settings.max_new_tokens if run.token_limit is None else run.token_limit
    return limit, (run.baseline or run.lanes[0]).finish


def _draft_of(run: Run, lane: Lane) -> str:
    """The draft whose chain ``lane`` is replayed on; for plain decoding any of them."""
    if not run.chains:
        raise UserError(why_no_chain(run))
    draft = lane.draft or (run.pair.default_draft if not lane.is_plain else next(iter(run.chains)))
    if draft not in run.chains:
        known = ", ".join(run.chains)
        raise UserError(f"This run has no recorded guesses of the draft {draft}: choose one of {known}.")
    return draft
