"""A feature draft that makes all guesses of an iteration in one pass (as DFlash does, Chen, Liang and Liu 2026)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..engines.inputs import EncodedPrompt
from .drafting import States
from .feature_drafting import FeatureDraft
from .heads_drafting import ParallelDraft

if TYPE_CHECKING:
    import torch


class BlockDraft(ParallelDraft, FeatureDraft):
    """In the places after the text it reads the text's last token again, each time with another projection of what it
    read there; these places see the text and those before them, but no guess.
    """

    in_one_pass = True

    def start(self, prompt: EncodedPrompt, states: States = ()) -> None:
        FeatureDraft.start(self, prompt, states)
        self._at_once = None

    def _guess(self, text: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        unseen = text[self._model.length + self._skipped :]
        added = self._of_text(len(unseen))
        room = self._model.max_length - self._model.length - len(unseen)
        later = self._project.of_block(added[-1:])[:room]
        ids = unseen + unseen[-1:] * len(later)
        logits = self._reads.extend_with(ids, torch.cat([added, later]), last=1 + len(later))
        return logits, self._model.last_states[0][-len(logits) :]

    def forget(self, length: int, path: Sequence[int] = ()) -> None:
        FeatureDraft.forget(self, length)  # of the tree, the cache holds nothing
        super().forget(length)
