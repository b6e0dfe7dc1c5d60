"""The speculative decoding loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ..engines.base import CachedModel
from ..engines.cuda import CudaModel
from ..engines.inputs import Branches, EncodedPrompt, already_in_place
from ..lookahead.base import DraftState, LookaheadPolicy, TreePolicy
from ..records.trace import Finish, StopReason
from .acceptance import AcceptanceRule, Draws, Verified, follow
from .clock import DRAFT, POLICY, VERIFY, Clock, Times
from .device_drafting import DeviceDraft, works_on_device
from .drafting import DraftSource, States
from .features import as_rows
from .growing import Decision, grow_tree, in_order_of_text
from .limits import Limits

NEEDS_DRAFT = "a policy that drafts needs a draft"


@dataclass(slots=True)
class RawIteration:
    """One iteration in the loop, as plain numbers; they become a trace after the clock has stopped.

    ``decisions[i]`` was taken with i tokens drafted. ``emitted`` is None if the text ended within the accepted tokens.
    ``finish`` is set on the last iteration of a text. ``parents`` are as in a Proposal; the accepted tokens come first
    in a tree, too. ``reads``: the draft passes behind a tree.
    """

    start: int
    drafted: list[int]
    n_accepted: int
    emitted: int | None
    stop: StopReason
    decisions: list[Decision]
    draws: Draws
    times: Times
    finish: Finish | None
    parents: list[int] | None = None
    reads: int | None = None

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
    prompt: EncodedPrompt,
    limits: Limits,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[RawIteration]:
    """Continues ``prompt`` iteration by iteration (Leviathan et al. 2023, Algorithm 1).

    Both models must have read the prompt except its last token (``start_text``); policy and rule must have been
    reset. ``draft`` may be None for a policy that never drafts. The time between iterations is not counted, and the
    loop ends when ``cancelled()`` is true.
    """
    text = list(prompt.ids)
    state = DraftState(text=text)
    layers = draft.abilities.layers if draft is not None else ()
    target.kept_layers = layers
    verify = make_verifier(target, draft, rule)
    finish: Finish | None = None
    while finish is None and not cancelled():
        clock.begin()
        start = len(text) - len(prompt)
        state.begin(start)

        # The draft proposes tokens one by one until the policy or a limit stops it.
        wanted = limits.max_new_tokens - start
        if isinstance(policy, TreePolicy):
            assert draft is not None, NEEDS_DRAFT
            most, bound = _most_nodes(policy, draft, target, len(text))
            stop, decisions = grow_tree(draft, policy, state, most, wanted - 1, bound, limits.ends, clock)
        else:
            most, bound = _most(policy, draft, wanted, len(text))
            stop, decisions = _propose(text, draft, policy, state, most, bound, limits.ends, clock)

        # The target reads them all in one pass; the rule accepts a path of them and adds the target's own token.
        path, emitted = verify(text[-1], state)
        n_accepted = len(path)
        clock.lap(VERIFY)

        # The text takes the tokens up to its end, and both models discard the rest.
        new = [*(state.tokens[node] for node in path), emitted]
        n_kept, finish = limits.cut(text[len(prompt) :], new)
        text += new[:n_kept]
        if draft is not None:
            draft.observe(n_accepted, _states(target, path) if layers else ())
            draft.forget(len(text) - 1, path)
        top = len(text) - n_kept  # the pass read the token before the guesses, and then these
        target.rewind(top, [top + node for node in path[: n_kept - 1]])
        policy.observe(len(state.tokens), n_accepted)
        drafted, parents, draws = state.tokens[:], state.parents, rule.draws
        if isinstance(policy, TreePolicy):
            policy.observe_tree(state, path)
            drafted, parents, decisions, draws = in_order_of_text(state, path, decisions, draws)

        yield RawIteration(
            start=start,
            drafted=drafted,
            n_accepted=min(n_accepted, n_kept),
            emitted=emitted if n_kept > n_accepted else None,
            stop="eos" if parents is None and drafted and drafted[-1] in limits.ends else stop,
            decisions=decisions,
            draws=draws,
            times=clock.end(),
            finish=finish,
            parents=parents,
            reads=None if parents is None else state.reads,
        )


def _states(target: CachedModel, path: Sequence[int]) -> States:
    """The target's states of the text's last token and of the accepted ones; states of other rows are invalid."""
    n = len(path)
    if already_in_place(0, path) == n:
        return tuple(rows[: n + 1] for rows in target.last_states)
    kept = [0, *(node + 1 for node in path)]
    return tuple(rows[kept] for rows in target.last_states)


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


def _most_nodes(policy: TreePolicy, draft: DraftSource, target: CachedModel, n_text: int) -> tuple[int, StopReason]:
    """The maximum number of guesses in a tree and its reason: the policy's cap, or what fits both contexts."""
    room = min(target.max_length - n_text, draft.max_length - n_text + 1)
    return (policy.cap, "cap") if policy.cap <= room else (max(0, room), "context")


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
        if proposal is not None and policy.needs_features(state):
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


def verify_on_host(target: CachedModel, rule: AcceptanceRule, last: int, state: DraftState) -> Verified:
    """The target reads the text's ``last`` token and the proposals. The rule decides by their logits, on the host: this
    works with every engine and rule.

    Returns the indices of the accepted ones, in the order of the text, and the target's own token after them.
    """
    logits = target.extend([last, *state.tokens], _branches(target, state))
    return rule.verify(as_rows(logits), state, state.start)


def _branches(target: CachedModel, state: DraftState) -> Branches | None:
    """Where the text's last token and a tree below it stand; None for a chain."""
    if state.parents is None:
        return None
    return Branches.below(target.length, [-1, *(parent + 1 for parent in state.parents)])


def verify_on_device(
    target: CudaModel, draft: DraftSource | None, vocab_size: int, last: int, state: DraftState
) -> Verified:
    """Greedy acceptance on the target's device: only ids are copied to the host, never logits."""
    waiting = draft.take_waiting() if isinstance(draft, DeviceDraft) else None
    if waiting is None:
        return follow(target.choices([last, *state.tokens], vocab_size, _branches(target, state)), state)
    drafted, ends = waiting
    tokens, choices, n_accepted = target.verify_planned(last, drafted, vocab_size)
    end = next((index for index, token in enumerate(tokens) if token in ends), len(tokens))
    state.tokens[:] = tokens[: end + 1]
    n_accepted = min(n_accepted, len(state.tokens))
    return range(n_accepted), choices[n_accepted]


def make_verifier(target: CachedModel, draft: DraftSource | None, rule: AcceptanceRule) -> partial[Verified]:
    """How the target's engine verifies by the rule."""
    if works_on_device(target, rule):
        return partial(verify_on_device, target, draft, rule.vocab_size)
    return partial(verify_on_host, target, rule)
