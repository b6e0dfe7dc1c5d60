"""Drafts that read the target's hidden states: token after token (EAGLE-3, Li et al. 2025), or all guesses of an
iteration at once, with parallel heads (Medusa-1, Cai et al. 2024) or in one pass (as DFlash does, Chen, Liang and Liu
2026).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from ..engines.base import CachedModel
from ..engines.inputs import FINAL, Branches, EncodedPrompt
from ..errors import UserError
from ..lookahead.base import DraftState
from ..records.proposal import path_to
from .acceptance import AcceptanceRule, Siblings
from .drafting import DraftAbilities, ModelDraft, ModelProposal, States
from .features import as_rows


class FeatureDraft(ModelDraft):
    """A language model that reads each token of the text with the target's states of the token before it.

    The target has not read a guess yet, so after a guess the draft reads its own last state instead. Tokens read in
    this way are forgotten after the check, and the accepted ones are read again with the target's states.
    """

    abilities = DraftAbilities(text_only=False)
    in_one_pass = False  # all guesses of an iteration

    def __init__(self, name: str, model: CachedModel, rule: AcceptanceRule, needs: frozenset[str]) -> None:
        super().__init__(name, model, rule, needs)
        projections = model.projections
        if projections is None or (projections.n > 1) != self.in_one_pass:
            raise UserError(f"The draft {name} has no projections of hidden states for its kind: fetch it again.")
        self._project = projections
        self._rows: list[torch.Tensor] = []  # what is added to the tokens of the text, in parts
        self._n_rows = 0
        self._known = 0  # tokens that were read with the target's states
        self._last: torch.Tensor | None = None  # own state of the guess before; None before the first guess
        self._after: dict[int, torch.Tensor] = {}  # own states after nodes of a tree

    def start(self, prompt: EncodedPrompt, states: States = ()) -> None:
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
            self._model.extend(prompt.text[:-1], added=self._of_text(len(places) - 1), last=1)

    def observe(self, n_accepted: int, states: States) -> None:
        self._take(states)

    def _take(self, states: States) -> None:
        self._rows.append(self._model.of_target(states))
        self._n_rows += len(self._rows[-1])

    def read_node(self, state: DraftState, node: int) -> Siblings:
        if node < 0:
            self._after = {}
        else:
            assert state.parents is not None
            self._last = self._after[state.parents[node]]
        found = super().read_node(state, node)
        assert self._last is not None
        self._after[node] = self._last.clone()  # the engine's next pass may overwrite it
        return found

    def _read(self, unseen: list[int], branches: Branches | None = None) -> np.ndarray:
        added = self._of_text(len(unseen)) if self._last is None else self._project.of_own(self._last)
        row = self._take_logits(self._model.extend(unseen, branches, added, last=1))[-1]
        self._last = self._model.last_states[0][-1:]
        return row

    def _of_text(self, n: int) -> torch.Tensor:
        """What is added to the next ``n`` tokens of the text, [n, hidden_size], which the draft is about to read."""
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


class ParallelDraft(ModelDraft):
    """Guesses several tokens at once when the first of an iteration is asked for, which costs all that it computes.

    No guess reads another, so the guesses of one place are the same below each node of a tree.
    """

    abilities = DraftAbilities(text_only=False, may_decline=True, at_once=True)
    _at_once: np.ndarray | None = None  # logits of all guesses [n, ids]; None: not computed for this iteration
    _states_at_once: np.ndarray | None = None  # that they were read from

    @abstractmethod
    def _guess(self, text: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """After ``text``: the guesses' logits [n, ids], and the states [n, hidden_size] that these are read from."""

    def step(self, text: list[int], state: DraftState) -> ModelProposal | None:
        return super().step(text, state) if self._has_next(text, state) else None

    def _has_next(self, text: list[int], state: DraftState) -> bool:
        return len(text) <= self.max_length and len(state.tokens) < len(self._logits(text))

    def read_node(self, state: DraftState, node: int) -> Siblings:
        depth = len(path_to(state.parents or [], node))
        logits = self._logits(state.text)
        if depth == len(logits):
            return Siblings()
        return self._rule.siblings(logits[depth], state.start + depth, node, self._ids)

    def _next_row(self, text: list[int], state: DraftState) -> np.ndarray:
        return self._logits(text)[len(state.tokens)]

    def _logits(self, text: list[int]) -> np.ndarray:
        """Of all guesses after ``text``, over the tokens that the draft can propose."""
        if self._at_once is None:
            logits, states = self._guess(text)
            self._at_once = self._take_logits(logits)
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

    def __init__(self, name: str, model: CachedModel, rule: AcceptanceRule, needs: frozenset[str]) -> None:
        super().__init__(name, model, rule, needs)
        if model.parallel_heads is None:
            raise UserError(f"The draft {name} has no heads that read hidden states: fetch it again.")
        self._heads = model.parallel_heads
        self._before: torch.Tensor | None = None  # the target's state [1, hidden] before the text's last token

    def start(self, prompt: EncodedPrompt, states: States = ()) -> None:
        last = states[0][-1:] if states else torch.zeros(1, self._model.hidden_size)
        self._model.rewind(0)  # it reads no text, whose tokens its head would have
        self.observe(0, (last,))
        self.forget(len(prompt))

    def observe(self, n_accepted: int, states: States) -> None:
        self._before = states[0][-1:].clone()

    def _guess(self, text: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        assert self._before is not None, "observe() comes before each iteration"
        return self._heads.guess(self._before)


class BlockDraft(ParallelDraft, FeatureDraft):
    """In the places after the text it reads the text's last token again, each time with another projection of what it
    read there; these places see the text and those before them, but no guess.
    """

    in_one_pass = True

    def start(self, prompt: EncodedPrompt, states: States = ()) -> None:
        FeatureDraft.start(self, prompt, states)
        self._at_once = None

    def _guess(self, text: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        unseen = text[self._model.length + self._skipped :]
        added = self._of_text(len(unseen))
        room = self._model.max_length - self._model.length - len(unseen)
        later = self._project.of_block(added[-1:])[:room]
        ids = unseen + unseen[-1:] * len(later)
        logits = self._model.extend(ids, added=torch.cat([added, later]), last=1 + len(later))
        return logits, self._model.last_states[0][-len(logits) :]

    def forget(self, length: int, path: Sequence[int] = ()) -> None:
        FeatureDraft.forget(self, length)  # of the tree, the cache holds nothing
        super().forget(length)
