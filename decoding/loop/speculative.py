"""The speculative decoding loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..engines.inputs import FINAL
from ..lookahead.base import DraftState, LookaheadPolicy
from ..records.trace import Finish, StopReason
from .acceptance import AcceptanceRule
from .checking import make_checker
from .clock import CHECK, DRAFT, POLICY, Clock, Times
from .drafting import DraftSource
from .features import as_rows
from .limits import Limits

if TYPE_CHECKING:
    from ..engines.base import CachedModel

NEEDS_DRAFT = "a policy that drafts needs a draft"

Decision = tuple[float | None, float | None]  # a policy's score and threshold


@dataclass(slots=True)
class RawIteration:
    """One iteration in the loop: bare numbers, which become a trace after the clock has stopped.

    ``decisions[i]`` was taken with i tokens drafted. ``emitted`` is None if the text ended within the accepted tokens.
    ``finish`` is set on the last iteration of a text.
    """

    start: int
    drafted: list[int]
    n_accepted: int
    emitted: int | None
    stop: StopReason
    decisions: list[Decision]
    draws: list[tuple[float, float]] | None
    times: Times
    finish: Finish | None

    @property
    def tokens(self) -> list[int]:
        """The tokens of the text that this iteration produced."""
        kept = self.drafted[: self.n_accepted]
        return kept if self.emitted is None else [*kept, self.emitted]


def speculative_decode(
    target: CachedModel,
    draft: DraftSource | None,
    policy: LookaheadPolicy,
    rule: AcceptanceRule,
    prompt: list[int],
    limits: Limits,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[RawIteration]:
    """Continues ``prompt`` iteration by iteration (Leviathan et al. 2023, Algorithm 1).

    Both models must have read all of the prompt but its last token; policy and rule must have been reset. ``draft`` may
    be None for a policy that never drafts. The time between iterations is not counted, and the loop ends when
    ``cancelled()`` is true.
    """
    text = list(prompt)
    state = DraftState(text=text)
    target.kept_layers = FINAL if draft is not None and draft.abilities.wants_hidden_states else ()
    checker = make_checker(target, draft, rule)
    finish: Finish | None = None
    while finish is None and not cancelled():
        clock.begin()
        start = len(text) - len(prompt)
        state.begin(start)

        # The draft proposes tokens one by one until the policy or a limit stops it.
        most, bound = _most(policy, draft, limits.max_new_tokens - start, len(text))
        stop, decisions = _propose(text, draft, policy, state, most, bound, limits.ends, clock)

        # The target reads them all in one pass; the rule accepts a prefix and adds the target's own token.
        n_accepted, emitted = checker.check(text[-1], state)
        clock.lap(CHECK)

        # The text takes the tokens up to its end, and both models discard the rest.
        new = [*state.tokens[:n_accepted], emitted]
        n_kept, finish = limits.cut(text[len(prompt) :], new)
        text += new[:n_kept]
        target.rewind(len(text) - 1)
        if draft is not None:
            draft.observe(n_accepted, _hidden_states(target, draft, n_accepted))
            draft.forget(len(text) - 1)
        policy.observe(len(state.tokens), n_accepted)

        yield RawIteration(
            start=start,
            drafted=state.tokens[:],
            n_accepted=min(n_accepted, n_kept),
            emitted=emitted if n_kept > n_accepted else None,
            stop="eos" if state.tokens and state.tokens[-1] in limits.ends else stop,
            decisions=decisions,
            draws=rule.draws,
            times=clock.end(),
            finish=finish,
        )


def _hidden_states(target: CachedModel, draft: DraftSource, n_accepted: int) -> np.ndarray | None:
    """What the target's last pass leaves for a draft that asks for it; the rows of rejected tokens are void."""
    if not draft.abilities.wants_hidden_states:
        return None
    return as_rows(target.last_states[0])[: n_accepted + 1]


def _most(policy: LookaheadPolicy, draft: DraftSource | None, wanted: int, n_text: int) -> tuple[int, StopReason]:
    """The maximum number of tokens to draft now and its reason: the tokens still wanted (minus the target's own), the
    policy's cap, or the draft's context.
    """
    bound: StopReason = "limit"
    most = wanted - 1
    if policy.cap is not None and policy.cap < most:
        most, bound = policy.cap, "cap"
    if draft is not None and draft.max_length - n_text + 1 < most:
        most, bound = max(0, draft.max_length - n_text + 1), "context"
    return most, bound


def _propose(
    text: list[int],
    draft: DraftSource | None,
    policy: LookaheadPolicy,
    state: DraftState,
    most: int,
    bound: StopReason,
    ends: frozenset[int],
    clock: Clock,
) -> tuple[StopReason, list[Decision]]:
    """Fills ``state`` with the proposals of one iteration. Returns why drafting stopped and the decisions taken."""
    planned = policy.planned(state.start)
    if planned is not None:
        clock.lap(POLICY)
        stop: StopReason = "policy" if planned <= most else bound
        if min(planned, most) > 0:
            assert draft is not None, NEEDS_DRAFT
            if not draft.propose(text, state, min(planned, most), ends):
                stop = "exhausted"
            clock.lap(DRAFT)
        return stop, []

    assert draft is not None, NEEDS_DRAFT
    decisions: list[Decision] = []
    proposal = None
    while len(state.tokens) < most:
        if proposal is not None and policy.looks(state):
            draft.read_features(state, proposal)
        more = policy.should_draft(state)
        decisions.append((policy.score, policy.threshold))
        clock.lap(POLICY)
        if not more:
            return "policy", decisions
        proposal = draft.step(text, state)
        clock.lap(DRAFT)
        if proposal is None:
            return "exhausted", decisions
        if state.tokens[-1] in ends:
            return "eos", decisions
    return bound, decisions
