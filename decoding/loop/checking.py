"""The target's side of an iteration: one pass over the proposals, and acceptance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..lookahead.base import DraftState
from .acceptance import AcceptanceRule, agreeing
from .device_drafting import DeviceDraft, works_on_device
from .drafting import DraftSource
from .features import as_rows

if TYPE_CHECKING:
    from ..engines.base import CachedModel, DeviceModel


class Checker(Protocol):
    def check(self, last: int, state: DraftState) -> tuple[int, int]:
        """Reads the text's ``last`` token and the proposals. Returns the number of accepted ones and the target's own
        token.
        """


class HostChecker:
    """Copies the logits to the host, where the rule decides. Works with every engine and rule."""

    def __init__(self, target: CachedModel, rule: AcceptanceRule) -> None:
        self._target = target
        self._rule = rule

    def check(self, last: int, state: DraftState) -> tuple[int, int]:
        logits = as_rows(self._target.extend([last, *state.tokens]))
        return self._rule.check(logits, state.tokens, state.start)


class DeviceChecker:
    """Greedy acceptance on the target's device: only ids are copied to the host, never logits."""

    def __init__(self, target: DeviceModel, draft: DraftSource | None, vocab_size: int) -> None:
        self._target = target
        self._draft = draft if isinstance(draft, DeviceDraft) else None
        self._vocab_size = vocab_size

    def check(self, last: int, state: DraftState) -> tuple[int, int]:
        waiting = self._draft.take_waiting() if self._draft else None
        if waiting is None:
            choices = self._target.choices([last, *state.tokens], self._vocab_size)
            n_accepted = agreeing(state.tokens, choices)
        else:
            tokens, choices, n_accepted = self._target.check_planned(last, waiting.drafted, self._vocab_size)
            state.tokens[:] = waiting.cut(tokens)
            n_accepted = min(n_accepted, len(state.tokens))
        return n_accepted, choices[n_accepted]


def make_checker(target: CachedModel, draft: DraftSource | None, rule: AcceptanceRule) -> Checker:
    """The checker for the target's engine and the rule; a draft that asks for hidden states needs the host's."""
    keeps_states = draft is not None and draft.abilities.wants_hidden_states
    if works_on_device(target, rule) and not keeps_states:
        return DeviceChecker(target, draft, rule.vocab_size)
    return HostChecker(target, rule)
