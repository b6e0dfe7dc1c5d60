"""A draft that reads the target's hidden states (EAGLE-3, Li et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..engines.base import CachedModel, reads_states
from ..engines.inputs import FINAL, Branches, EncodedPrompt
from ..errors import UserError
from ..lookahead.base import DraftState
from ..records.pairs import DraftKind
from .acceptance import AcceptanceRule, Siblings
from .drafting import DraftAbilities, ModelDraft, States
from .features import as_rows

if TYPE_CHECKING:
    import torch


class FeatureDraft(ModelDraft):
    """A language model that reads each token of the text with the target's states of the token before it.

    The target has not read a guess yet, so after a guess the draft reads its own last state instead. Tokens read in
    this way are forgotten after the check, and the accepted ones are read again with the target's states.
    """

    in_one_pass = False  # all guesses of an iteration

    @classmethod
    def abilities_as(cls, kind: DraftKind) -> DraftAbilities:
        return DraftAbilities(text_only=False, layers=kind.layers)

    def __init__(
        self, name: str, model: CachedModel, rule: AcceptanceRule, needs: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(name, model, rule, needs)
        projections = model.projections
        if not reads_states(model) or projections is None or (projections.n > 1) != self.in_one_pass:
            raise UserError(f"The draft {name} has no projections of hidden states for its kind: fetch it again.")
        self._reads, self._project = model, projections
        self._rows: list[torch.Tensor] = []  # what is added to the tokens of the text, in parts
        self._n_rows = 0
        self._known = 0  # tokens that were read with the target's states
        self._last: torch.Tensor | None = None  # own state of the guess before; None before the first guess
        self._after: dict[int, torch.Tensor] = {}  # own states after nodes of a tree

    def start(self, prompt: EncodedPrompt, states: States = ()) -> None:
        import torch

        model, first = self._model, torch.zeros(1, self._model.hidden_size)
        model.kept_layers = FINAL
        model.rewind(0)
        self._skipped = prompt.n_placeholders
        read = [torch.cat([first.to(layer), layer]) for layer in states] or [first] * len(self.abilities.layers)
        places = [place for place in range(len(prompt)) if not 0 <= place - prompt.at < self._skipped]
        self._rows, self._n_rows = [], 0
        self._take(tuple(layer[places] for layer in read))
        self._known, self._last = 0, None
        if len(places) > 1:
            self._reads.extend_with(prompt.text[:-1], self._of_text(len(places) - 1))

    def observe(self, n_accepted: int, states: States) -> None:
        self._take(states)

    def _take(self, states: States) -> None:
        self._rows.append(self._project.of_target(states))
        self._n_rows += len(self._rows[-1])

    def read_node(self, state: DraftState, node: int) -> Siblings:
        if node < 0:
            self._after = {}
        else:
            assert state.parents is not None
            self._last = self._after[state.parents[node]]
        found = super().read_node(state, node)
        assert self._last is not None
        self._after[node] = self._last
        return found

    def _read(self, unseen: list[int], branches: Branches | None = None) -> np.ndarray:
        added = self._of_text(len(unseen)) if self._last is None else self._project.of_own(self._last)
        logits = as_rows(self._reads.extend_with(unseen, added, branches))[-1]
        self._last = self._model.last_states[0][-1:]
        return logits if self._head_ids is None else logits[: len(self._head_ids)]

    def _of_text(self, n: int) -> torch.Tensor:
        """What is added to the next ``n`` tokens of the text, [n, hidden_size], which the draft is about to read."""
        import torch

        first, self._known = self._model.length, self._model.length + n
        last = self._rows[-1]
        start = first - (self._n_rows - len(last))
        if start < 0:  # more than the last check brought: nothing was drafted meanwhile
            self._rows = [torch.cat(self._rows)]
            last, start = self._rows[0], first
        return last[start : start + n]

    def forget(self, length: int, path: Sequence[int] = ()) -> None:
        length -= self._skipped
        self._known = min(self._known, length)
        if self._model.length > self._known:
            self._model.rewind(self._known)
        while self._n_rows > length + 1:
            kept = self._rows[-1][: length + 1 - self._n_rows]
            self._n_rows = max(length + 1, self._n_rows - len(self._rows[-1]))
            self._rows.pop()
            if len(kept):
                self._rows.append(kept)
        self._last, self._places = None, {}
