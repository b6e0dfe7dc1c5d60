"""Parallel heads on the target's last hidden state (Medusa-1, Cai et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..engines.base import CachedModel
from ..engines.inputs import Branches, EncodedPrompt
from ..errors import UserError
from ..lookahead.base import DraftState
from ..records.pairs import DraftKind
from ..records.proposal import path_to
from .acceptance import AcceptanceRule, Siblings
from .drafting import DraftAbilities, ModelDraft, ModelProposal, States
from .features import as_rows

if TYPE_CHECKING:
    import torch


class HeadsDraft(ModelDraft):
    """Guesses one token with each head, all of them at once from the target's state before the text's last token.

    A guess reads neither another guess nor that token. The first guess therefore costs everything that the draft
    computes, and the guesses of one place are the same below each node of a tree.
    """

    @classmethod
    def abilities_as(cls, kind: DraftKind) -> DraftAbilities:
        return DraftAbilities(text_only=False, may_decline=True, layers=kind.layers)

    def __init__(
        self, name: str, model: CachedModel, rule: AcceptanceRule, needs: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(name, model, rule, needs)
        if model.parallel_heads is None:
            raise UserError(f"The draft {name} has no heads that read hidden states: fetch it again.")
        self._heads = model.parallel_heads
        self._before: torch.Tensor | None = None  # the target's state [1, hidden] before the text's last token
        self._rows: np.ndarray | None = None  # logits of all guesses; None: not computed for this iteration
        self._states: np.ndarray | None = None  # that they were read from

    def start(self, prompt: EncodedPrompt, states: States = ()) -> None:
        import torch

        last = states[0][-1:] if states else torch.zeros(1, self._model.hidden_size)
        self.observe(0, (last,))

    def observe(self, n_accepted: int, states: States) -> None:
        self._before, self._rows = states[0][-1:].clone(), None

    def step(self, text: list[int], state: DraftState) -> ModelProposal | None:
        return super().step(text, state) if len(state.tokens) < self._heads.n else None

    def read_node(self, state: DraftState, node: int) -> Siblings:
        depth = len(path_to(state.parents or [], node)) if node >= 0 else 0
        if depth == self._heads.n:
            return _NOTHING
        return self._rule.siblings(self._row(depth), state.start + depth, node, self._head_ids)

    def _unseen(self, text: list[int], state: DraftState) -> list[int]:
        return state.tokens

    def _read(self, unseen: list[int], branches: Branches | None = None) -> np.ndarray:
        return self._row(len(unseen))

    def _row(self, at: int) -> np.ndarray:
        """Logits of guess ``at``, over the tokens that the draft can propose."""
        if self._rows is None:
            assert self._before is not None, "observe() comes before each iteration"
            logits, states = self._heads.guess(self._before)
            self._rows = as_rows(logits)
            self._states = as_rows(states) if self._needs_states else None
        return self._rows[at] if self._head_ids is None else self._rows[at, : len(self._head_ids)]

    def _read_states(self, state: DraftState) -> None:
        assert self._states is not None
        at = len(state.tokens) - 1
        if at:
            state.hidden.append(self._states[at])
        state.proposer.append(self._states[at])

    def forget(self, length: int, path: Sequence[int] = ()) -> None:
        pass  # nothing of the text was kept


class _Nothing(Siblings):
    """Below the last head there are no guesses."""

    chance = 0.0

    def draw(self) -> tuple[int, float, float]:
        raise IndexError("no choice is left")


_NOTHING = _Nothing()
