"""Greedy drafting with an engine that works on the device (decoding/engines/cuda.py)."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import numpy as np
import torch

from ..engines.base import CachedModel
from ..engines.cuda import CudaModel
from ..lookahead.base import SL_CAP, DraftState
from .acceptance import AcceptanceRule
from .drafting import ModelDraft
from .state_drafting import FeatureDraft

Waiting = tuple[torch.Tensor, frozenset[int]]
"""Proposals that are not yet on the host, and the ids after which a draft proposes nothing more."""


def works_on_device(model: CachedModel, rule: AcceptanceRule) -> TypeGuard[CudaModel]:
    """Whether ``model``'s engine does greedy work that never brings logits to the host, and ``rule`` needs no other."""
    return rule.name == "greedy" and isinstance(model, CudaModel)


class DeviceDraft(ModelDraft):
    """A step copies one token and its features to the host in one transfer; several planned at once copy nothing."""

    _model: CudaModel
    _waiting: Waiting | None = None  # for the next verification

    def step(self, text: list[int], state: DraftState) -> Any:  # a decoding.engines.cuda.DraftStep
        unseen = self._unseen(text, state)
        found = self._model.draft_step(unseen, self._rule.vocab_size, self._added(unseen, state))
        state.tokens.append(found.token)
        return found

    def _read_logits(self, state: DraftState, proposal: Any) -> None:
        state.p.append(proposal.p)
        state.entropy.append(proposal.entropy)
        if "margin" in self._needs:
            state.margin.append(_margin(proposal.top10))
        if "top10" in self._needs:
            state.top10.append(np.array(proposal.top10, dtype=np.float32))

    def propose(self, text: list[int], state: DraftState, n: int, ends: frozenset[int]) -> bool:
        if n > SL_CAP:  # only an oracle drafts this far: graphs are not recorded for every length
            return super().propose(text, state, n, ends)
        unseen = self._unseen(text, state)
        self._waiting = self._model.draft_planned(unseen, n, self._rule.vocab_size, self._added(unseen, state)), ends
        return True

    def _added(self, unseen: list[int], state: DraftState) -> torch.Tensor | None:
        """What is added to the embeddings of the tokens that the model is about to read."""
        return None

    def take_waiting(self) -> Waiting | None:
        """Returns the proposals once; None if the tokens are already on the host."""
        waiting, self._waiting = self._waiting, None
        return waiting


class DeviceFeatureDraft(DeviceDraft, FeatureDraft):
    """The same for a draft that reads the target's hidden states."""

    def _added(self, unseen: list[int], state: DraftState) -> torch.Tensor | None:
        return None if state.tokens else self._of_text(len(unseen))  # its own states stay on the device


ON_DEVICE: dict[type[ModelDraft], type[DeviceDraft]] = {ModelDraft: DeviceDraft, FeatureDraft: DeviceFeatureDraft}


def _margin(top10: Any) -> float:
    """The margin of a greedy guess, whose strongest rival is the second of the top-10."""
    first, second = float(top10[0]), float(top10[1])
    return math.log(first / second) if second > 0.0 else math.inf
