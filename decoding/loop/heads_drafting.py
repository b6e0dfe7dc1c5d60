"""Drafts that make all guesses of an iteration at once, and the simplest of them: parallel heads on the target's last
hidden state (Medusa-1, Cai et al. 2024).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..engines.base import CachedModel
from ..engines.inputs import EncodedPrompt
from ..errors import UserError
from ..lookahead.base import DraftState
from ..records.pairs import DraftKind
from ..records.proposal import path_to
from .acceptance import AcceptanceRule, Siblings
from .drafting import DraftAbilities, ModelDraft, ModelProposal, States
from .features import as_rows

if TYPE_CHECKING:
    import torch


class ParallelDraft(ModelDraft):
    """Guesses several tokens at once when the first of an iteration is asked for, which costs all that it computes.

    No guess reads another, so the guesses of one place are the same below each node of a tree.
    """

    _at_once: np.ndarray | None = None  # logits of all guesses [n, ids]; None: not computed for this iteration
    _states_at_once: np.ndarray | None = None  # that they were read from

    @classmethod
    def abilities_as(cls, kind: DraftKind) -> DraftAbilities:
        return DraftAbilities(text_only=False, may_decline=True, at_once=True, layers=kind.layers)

    @abstractmethod
    def _guess(self, text: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """After ``text``: the guesses' logits [n, ids], and the states [n, hidden_size] that these are read from."""

    def step(self, text: list[int], state: DraftState) -> ModelProposal | None:
        return super().step(text, state) if len(state.tokens) < len(self._logits(text)) else None

    def read_node(self, state: DraftState, node: int) -> Siblings:
        depth = len(path_to(state.parents or [], node)) if node >= 0 else 0
        logits = self._logits(state.text)
        if depth == len(logits):
            return _NOTHING
        return self._rule.siblings(logits[depth], state.start + depth, node, self._head_ids)

    def _next_row(self, text: list[int], state: DraftState) -> np.ndarray:
        return self._logits(text)[len(state.tokens)]

    def _logits(self, text: list[int]) -> np.ndarray:
        """Of all guesses after ``text``, over the tokens that the draft can propose."""
        if self._at_once is None:
            logits, states = self._guess(text)
            rows = as_rows(logits)
            self._at_once = rows if self._head_ids is None else rows[:, : len(self._head_ids)]
            self._states_at_once = as_rows(states) if self._needs_states else None
        return self._at_once

    def _read_states(self, state: DraftState) -> None:
        assert self._states_at_once is not None
        at = len(state.tokens) - 1
        if at:
            state.hidden.append(self._states_at_once[at])
        state.proposer.append(self._states_at_once[at])

    def forget(self, length: int, path: Sequence[int] = ()) -> None:
        self._at_once = None


class HeadsDraft(ParallelDraft):
    """Guesses one token with each head, from the target's state before the text's last token, which no head reads."""

    def __init__(
        self, name: str, model: CachedModel, rule: AcceptanceRule, needs: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(name, model, rule, needs)
        if model.parallel_heads is None:
            raise UserError(f"The draft {name} has no heads that read hidden states: fetch it again.")
        self._heads = model.parallel_heads
        self._before: torch.Tensor | None = None  # the target's state [1, hidden] before the text's last token

    def start(self, prompt: EncodedPrompt, states: States = ()) -> None:
        import torch

        last = states[0][-1:] if states else torch.zeros(1, self._model.hidden_size)
        self.observe(0, (last,))
        self.forget(len(prompt))

    def observe(self, n_accepted: int, states: States) -> None:
        self._before = states[0][-1:].clone()

    def _guess(self, text: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        assert self._before is not None, "observe() comes before each iteration"
        return self._heads.guess(self._before)


class _Nothing(Siblings):
    """Below the last guess there are none."""

    chance = 0.0

    def draw(self) -> tuple[int, float, float]:
        raise IndexError("no choice is left")


_NOTHING = _Nothing()
