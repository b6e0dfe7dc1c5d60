"""Models that compute equal passes only once, for the lossless check, which decodes each prompt about 200 times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..comparison.prepare import abilities_of, shared_vocabulary
from ..engines.base import CachedModel
from ..engines.inputs import Branches, EncodedPrompt, already_in_place
from ..engines.pair import Pair


class _Pass(NamedTuple):
    """Tokens that were read; ``branches``: the trunk and the paths of those in a tree."""

    ids: tuple[int, ...]
    branches: tuple[int, tuple[tuple[int, ...], ...]] | None


class _Rewind(NamedTuple):
    """All but the first ``length`` tokens and ``rows`` were discarded."""

    length: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """One change of a cache. ``first``: the first row that it wrote; ``length``: that of the cache after it."""

    change: _Pass | _Rewind
    first: int
    length: int


class RememberingModel(CachedModel):
    """Answers a pass from memory if exactly the same pass was computed before.

    The content of a cache follows from the passes that wrote it. If they are the same, tokens rejected on the way
    included, then the next pass has the same result to the bit and is not computed again. The same text written by
    other passes is *not* the same: whether their results agree is what a lossless check asks.
    """

    def __init__(self, model: CachedModel) -> None:
        self._model = model
        self.info, self.max_length, self.hidden_size = model.info, model.max_length, model.hidden_size
        self.vocab_size, self.head_ids, self.can_branch = model.vocab_size, model.head_ids, model.can_branch
        self.kept_layers: tuple[int, ...] = ()
        self.last_states: tuple[torch.Tensor, ...] = ()
        self._begin(0)

    def _begin(self, length: int) -> None:
        """Forgets all passes; ``length`` tokens are in the cache."""
        self._root = length
        self._steps: list[_Step] = []  # what the caller did
        self._done: list[_Step] = []  # what ``_model`` did
        self._memory: dict[tuple, tuple[Any, tuple[torch.Tensor, ...]]] = {}

    @property
    def length(self) -> int:  # type: ignore[override]
        return self._length_of(self._steps)

    def _length_of(self, steps: Sequence[_Step]) -> int:
        return steps[-1].length if steps else self._root

    def prefill(self, prompt: list[int] | EncodedPrompt) -> torch.Tensor:
        self._model.kept_layers = self.kept_layers
        logits = self._model.prefill(prompt)
        self.last_states = self._model.last_states
        self._begin(len(prompt))
        return logits

    def rewind(self, length: int, rows: Sequence[int] = ()) -> None:
        in_place = already_in_place(length, rows)
        length, rows = length + in_place, rows[in_place:]
        if length < self._root:
            self._model.rewind(length)
            self._begin(length)
        while self._steps and self._steps[-1].first >= length and not rows:  # it left no trace
            self._steps.pop()
        if rows or self.length > length:
            self._steps.append(_Step(_Rewind(length, tuple(rows)), length, length + len(rows)))

    def extend(self, ids: list[int], branches: Branches | None = None) -> torch.Tensor:
        return self._read("extend", ids, branches)

    def extend_reduced(self, ids: list[int], branches: Branches | None = None) -> torch.Tensor:
        return self._read("extend_reduced", ids, branches)

    def _read(self, kind: str, ids: Sequence[int], branches: Branches | None) -> Any:
        place = None if branches is None else (branches.trunk, tuple(map(tuple, branches.paths)))
        step = _Step(_Pass(tuple(ids), place), self.length, self.length + len(ids))
        key = (kind, self.kept_layers, tuple(self._steps), step)
        if key not in self._memory:
            self._memory[key] = self._compute(kind, step)
        self._steps.append(step)
        answer, self.last_states = self._memory[key]
        return self._restored(answer)

    def _compute(self, kind: str, step: _Step) -> tuple[Any, tuple[torch.Tensor, ...]]:
        self._catch_up()
        self._model.kept_layers = self.kept_layers
        logits = self._do(step, kind)
        return self._kept(logits), tuple(one.clone() for one in self._model.last_states)

    def _catch_up(self) -> None:
        """Brings ``_model`` to the caller's state, with the passes that were answered from memory."""
        same = next((i for i, (one, other) in enumerate(zip(self._steps, self._done)) if one != other), None)
        common = min(len(self._steps), len(self._done)) if same is None else same
        while any(step.first < self._length_of(self._done[:common]) for step in self._done[common:]):
            common -= 1  # what was there after that step has been overwritten since
        self._model.rewind(self._length_of(self._done[:common]))
        del self._done[common:]
        for step in self._steps[common:]:
            self._do(step)

    def _do(self, step: _Step, kind: str = "extend") -> Any:
        """Repeats one step on ``_model``; the logits of a pass."""
        self._done.append(step)
        if isinstance(step.change, _Rewind):
            return self._model.rewind(step.change.length, step.change.rows)
        ids, place = list(step.change.ids), step.change.branches
        if place is None:
            return getattr(self._model, kind)(ids)
        return getattr(self._model, kind)(ids, Branches(place[0], list(map(list, place[1]))))

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
    """The same pair with a memory for target and default draft; unchanged if their greedy work stays on a device.

    A draft that reads hidden states has none: its guesses depend on more than its tokens.
    """
    if pair.target.works_on_device:
        return pair
    shared = shared_vocabulary(pair, [pair.default_draft])
    new = Pair(
        pair.name,
        pair.tokenizer,
        RememberingTarget(pair.target, shared),
        pair.default_draft,
        pair.draft_names,
        lambda name: RememberingModel(pair.draft(name)) if abilities_of(pair, name).text_only else pair.draft(name),
        pair.chat,
    )
    new.target_folder, new.draft_folders = pair.target_folder, pair.draft_folders
    new.draft_kinds = pair.draft_kinds
    return new
