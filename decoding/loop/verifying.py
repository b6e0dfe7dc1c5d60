"""The target's side of an iteration: one pass over the proposals, and acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..engines.inputs import Branches
from ..lookahead.base import DraftState
from .acceptance import AcceptanceRule, agreeing
from .device_drafting import DeviceDraft, works_on_device
from .drafting import DraftSource
from .features import as_rows

if TYPE_CHECKING:
    from ..engines.base import CachedModel, DeviceModel


class Verifier(Protocol):
    def verify(self, last: int, state: DraftState) -> tuple[Sequence[int], int]:
        """Reads the text's ``last`` token and the proposals.

        Returns the indices of the accepted ones, in the order of the text, and the target's own token after them.
        """


class HostVerifier:
    """Copies the logits to the host, where the rule decides. Works with every engine and rule."""

    def __init__(self, target: CachedModel, rule: AcceptanceRule) -> None:
        self._target = target
        self._rule = rule

    def verify(self, last: int, state: DraftState) -> tuple[Sequence[int], int]:
        ids = [last, *state.tokens]
        if state.parents is None:
            n_accepted, token = self._rule.verify(as_rows(self._target.extend(ids)), state.tokens, state.start)
            return range(n_accepted), token
        rows = Branches.below(self._target.length, [-1, *(parent + 1 for parent in state.parents)])
        return self._rule.verify_tree(as_rows(self._target.extend(ids, rows)), state, state.start)


class DeviceVerifier:
    """Greedy acceptance of a chain on the target's device: only ids are copied to the host, never logits."""

    def __init__(self, target: DeviceModel, draft: DraftSource | None, vocab_size: int) -> None:
        self._target = target
        self._draft = draft if isinstance(draft, DeviceDraft) else None
        self._vocab_size = vocab_size

    def verify(self, last: int, state: DraftState) -> tuple[Sequence[int], int]:
        waiting = self._draft.take_waiting() if self._draft else None
        if waiting is None:
            choices = self._target.choices([last, *state.tokens], self._vocab_size)
            n_accepted = agreeing(state.tokens, choices)
        else:
            tokens, choices, n_accepted = self._target.verify_planned(last, waiting.drafted, self._vocab_size)
            state.tokens[:] = waiting.cut(tokens)
            n_accepted = min(n_accepted, len(state.tokens))
        return range(n_accepted), choices[n_accepted]


def make_verifier(
    target: CachedModel, draft: DraftSource | None, rule: AcceptanceRule, trees: bool = False
) -> Verifier:
    """The verifier for the target's engine and the rule; trees, and a draft that reads the target's states, need the
    host's.
    """
    reads_states = draft is not None and bool(draft.abilities.layers)
    if works_on_device(target, rule) and not (reads_states or trees):
        return DeviceVerifier(target, draft, rule.vocab_size)
    return HostVerifier(target, rule)
