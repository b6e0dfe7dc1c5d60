"""Models that compute equal passes only once, for the lossless check, which decodes each prompt about 200 times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..comparison.prepare import shared_vocabulary
from ..engines.base import CachedModel
from ..engines.inputs import Branches, EncodedPrompt
from ..engines.pair import Pair

TREES = "trees are read by the engine itself"


@dataclass(frozen=True, slots=True)
class _Pass:
    """One pass since the prompt: its tokens, and how many of them were kept."""

    ids: tuple[int, ...]
    kept: int


class RememberingModel(CachedModel):
    """Answers a pass from memory if exactly the same pass was computed before.

    The content of a cache follows from the passes that wrote it. If they are the same, tokens rejected on the way
    included, then the next pass has the same result to the bit and is not computed again. The same text written by
    other passes is *not* the same: whether their results agree is what a lossless check asks.
    """

    def __init__(self, model: CachedModel) -> None:
        self._model = model
        self.info, self.max_length, self.hidden_size = model.info, model.max_length, model.hidden_size
        self.vocab_size, self.head_ids = model.vocab_size, model.head_ids
        self.kept_layers: tuple[int, ...] = ()
        self.last_states: tuple[torch.Tensor, ...] = ()
        self._begin(0)

    def _begin(self, length: int) -> None:
        """Forgets all passes; ``length`` tokens are in the cache."""
        self.length = self._root = length
        self._passes: list[_Pass] = []  # what the caller has read
        self._done: list[_Pass] = []  # what ``_model`` has read
        self._memory: dict[tuple, tuple[Any, tuple[torch.Tensor, ...]]] = {}

    def prefill(self, prompt: list[int] | EncodedPrompt) -> torch.Tensor:
        self._model.kept_layers = self.kept_layers
        logits = self._model.prefill(prompt)
        self.last_states = self._model.last_states
        self._begin(len(prompt))
        return logits

    def rewind(self, length: int, rows: Sequence[int] = ()) -> None:
        assert not rows, TREES
        if length < self._root:
            self._model.rewind(length)
            self._begin(length)
        while self.length > length:
            last = self._passes.pop()
            self.length -= last.kept
            if self.length < length:
                self._passes.append(_Pass(last.ids, length - self.length))
                self.length = length

    def extend(self, ids: list[int], branches: Branches | None = None) -> torch.Tensor:
        assert branches is None, TREES
        return self._read("extend", ids)

    def extend_reduced(self, ids: list[int], branches: Branches | None = None) -> torch.Tensor:
        assert branches is None, TREES
        return self._read("extend_reduced", ids)

    def _read(self, kind: str, ids: Sequence[int]) -> Any:
        key = (kind, self.kept_layers, tuple(self._passes), tuple(ids))
        if key not in self._memory:
            self._memory[key] = self._compute(kind, list(ids))
        self._passes.append(_Pass(tuple(ids), len(ids)))
        self.length += len(ids)
        answer, self.last_states = self._memory[key]
        return self._restored(answer)

    def _compute(self, kind: str, ids: list[int]) -> tuple[Any, tuple[torch.Tensor, ...]]:
        self._catch_up()
        self._model.kept_layers = self.kept_layers
        logits = getattr(self._model, kind)(ids)
        self._done.append(_Pass(tuple(ids), len(ids)))
        states = tuple(one.clone() for one in self._model.last_states)
        return self._kept(logits), states

    def _catch_up(self) -> None:
        """Brings ``_model`` to the caller's position, with the passes that were answered from memory."""
        common, length = self._common()
        self._model.rewind(length)
        for one in self._passes[common:]:
            self._model.extend(list(one.ids))
            length += one.kept
            self._model.rewind(length)
        self._done = self._passes[:]

    def _common(self) -> tuple[int, int]:
        """The number of passes that ``_model`` need not repeat, and the length of the text after them."""
        length = self._root
        for number, (wanted, done) in enumerate(zip(self._passes, self._done)):
            if wanted.ids != done.ids or wanted.kept > done.kept:
                return number, length
            length += wanted.kept
            if wanted.kept < done.kept:
                return number + 1, length
        return min(len(self._passes), len(self._done)), length

    def _kept(self, logits: torch.Tensor) -> Any:
        return logits.clone()

    def _restored(self, answer: Any) -> torch.Tensor:
        return answer


class RememberingTarget(RememberingModel):
    """Keeps each row's first choice instead of its logits (a fifth of a megabyte): a greedy rule needs no more."""

    def __init__(self, model: CachedModel, shared_vocabulary: int) -> None:
        super().__init__(model)
        self._shared = shared_vocabulary

    def _kept(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[:, : self._shared].argmax(1, keepdim=True).cpu()

    def _restored(self, answer: torch.Tensor) -> torch.Tensor:
        """Logits [n, vocab] that are 1 for each row's first choice and 0 elsewhere."""
        return torch.zeros(len(answer), self._shared).scatter_(1, answer, 1.0)


def remembering(pair: Pair) -> Pair:
    """The same pair with a memory for target and default draft; unchanged if their greedy work stays on a device."""
    if pair.target.works_on_device:
        return pair
    shared = shared_vocabulary(pair, [pair.default_draft])
    new = Pair(
        pair.name,
        pair.tokenizer,
        RememberingTarget(pair.target, shared),
        pair.default_draft,
        pair.draft_names,
        lambda name: RememberingModel(pair.draft(name)),
        pair.chat,
    )
    new.target_folder, new.draft_folders = pair.target_folder, pair.draft_folders
    new.draft_kinds = pair.draft_kinds
    return new
