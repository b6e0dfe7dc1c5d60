"""The target's texts as batches, to train a draft or to measure it on held-out ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save
from torch import Tensor

from decoding.errors import UserError
from decoding.files import write_whole

from .losses import Known
from .texts import Text


def save_texts(texts: list[Text], file: Path) -> None:
    """Writes texts to a file, atomically."""
    tensors = {
        "ids": np.concatenate([text.ids for text in texts]),
        "top_ids": np.concatenate([text.top_ids for text in texts]),
        "top_logp": np.concatenate([text.top_logp for text in texts]),
        "lengths": np.array([len(text.ids) for text in texts], dtype=np.int64),
        "answers": np.array([text.answer for text in texts], dtype=np.int64),
        "temperatures": np.array([text.temperature for text in texts], dtype=np.float32),
    }
    kept = [text.states for text in texts if text.states is not None]
    if len(kept) == len(texts):
        tensors["states"] = np.concatenate(kept)
    write_whole(file, save(tensors, {"prompts": json.dumps([text.prompt for text in texts])}))


def shard_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("texts-*.safetensors"))


def _texts_in(file: Path) -> Iterator[Text]:
    """The texts of a file, as views of it: its states, ten times as large as all else, are read when they are used."""
    with safe_open(file, "pt") as shard:
        prompts = json.loads(shard.metadata()["prompts"])
        kept = {name: shard.get_tensor(name).numpy() for name in shard.keys()}  # noqa: SIM118  # it is no dict
    ends = kept["lengths"].cumsum()
    for index, prompt in enumerate(prompts):
        part = slice(int(ends[index] - kept["lengths"][index]), int(ends[index]))
        ids, top_ids, top_logp = (kept[name][part] for name in ("ids", "top_ids", "top_logp"))
        answer, temperature = int(kept["answers"][index]), float(kept["temperatures"][index])
        states = kept["states"][part] if "states" in kept else None
        yield Text(ids, answer, top_ids, top_logp, prompt, temperature, states)


def all_texts(folder: Path) -> Iterator[Text]:
    """All texts in a folder, in the order in which they were written."""
    for file in shard_files(folder):
        yield from _texts_in(file)


PROMPT_WEIGHT = 0.25
"""Weight of a position in a prompt, relative to one in an answer: a draft guesses only answers."""


def read_texts(folder: Path, split: str) -> list[Text]:
    """All texts of a split, in the order in which they were written."""
    return [text for text in all_texts(folder) if text.split == split]


def frequent_ids(texts: Sequence[Text], count: int) -> Tensor:
    """The ``count`` ids, sorted, that are most frequent in the target's answers; of equals, the lower id.

    An id counts once for each answer token, plus the target's probability of it at each answer position.
    """
    weights = np.zeros(np.iinfo(np.uint16).max + 1)
    for text in texts:
        np.add.at(weights, text.ids[text.answer :], 1.0)
        np.add.at(weights, text.top_ids[text.answer :], np.exp(text.top_logp[text.answer :].astype(np.float32)))
    best = np.argsort(-weights, kind="stable")[:count]
    return torch.from_numpy(np.sort(best[weights[best] > 0]))


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of similar length: padded ids (texts, length); the positions (n,) in the flattened ids whose next token is
    learned, with their weights (n,), which sum to 1, and the target's most probable ids (n, TOP) there and their
    log-probabilities; where asked for, the target's ``states`` (texts, length, layers, width) of the token before each.
    """

    ids: Tensor
    places: Tensor
    weight: Tensor
    top_ids: Tensor
    top_logp: Tensor
    states: Tensor | None = None

    @property
    def following(self) -> Tensor:
        """The next tokens (n,), which are learned."""
        return self.ids.flatten()[self.places + 1]

    def known(self, head_ids: Tensor) -> Known:
        """The target as a loss over the head of these ids, which are sorted, reads it."""
        found = torch.searchsorted(head_ids, self.top_ids).clamp_max(len(head_ids) - 1)
        inside = head_ids[found] == self.top_ids
        return Known(found * inside, inside, self.top_logp, self.weight)


def rows_of(texts: Sequence[Text], before: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """``texts`` as rows, each after the ids ``before`` and padded with id 0 to the longest; the positions (n,) in the
    flattened rows whose next token is of a text; and the weights (n,) of these.
    """
    width = len(before) + max(len(text.ids) for text in texts)
    ids = torch.zeros(len(texts), width, dtype=torch.long)
    places, weights = [], []
    for row, text in enumerate(texts):
        ids[row, : len(before)] = torch.tensor(before)
        ids[row, len(before) : len(before) + len(text.ids)] = torch.from_numpy(text.ids.astype(np.int64))
        first = row * width + len(before) - 1
        places.append(torch.arange(first, first + len(text.ids)))
        weight = torch.full((len(text.ids),), PROMPT_WEIGHT)
        weight[text.answer :] = 1.0
        weights.append(weight)
    weight = torch.cat(weights)
    return ids, torch.cat(places), weight / weight.sum()


class Texts:
    """Texts, each after the first tokens of the chat template, ``before``.

    ``states_before`` (len(before), layers, width): where batches are to hold states, the target's states of the token
    before each of these tokens.
    """

    def __init__(self, texts: Sequence[Text], before: Sequence[int], states_before: Tensor | None = None) -> None:
        if not texts:
            raise UserError("There are no texts to learn from. Run `python -m training align texts` first.")
        self.texts, self.before, self.states_before = list(texts), list(before), states_before

    def batches(self, tokens: int, seed: int) -> list[list[int]]:
        """One epoch: the indices of the texts in each batch of at most ``tokens`` padded tokens, in shuffled order."""
        random = np.random.default_rng(seed)
        lengths = np.array([len(text.ids) for text in self.texts]) + len(self.before)
        order = np.argsort(lengths + random.uniform(-8, 8, len(lengths)))
        found: list[list[int]] = []
        current: list[int] = []
        longest = 0
        for index, length in zip(order.tolist(), lengths[order].tolist()):
            longest = max(longest, length)
            if current and (len(current) + 1) * longest > tokens:
                found.append(current)
                current, longest = [], length
            current.append(index)
        found.append(current)
        return [found[place] for place in random.permutation(len(found))]

    def answers(self, rows: Sequence[int]) -> Iterator[slice]:
        """Where the answers of the texts in these ``rows`` of a batch stand in its places."""
        start = 0
        for text in (self.texts[row] for row in rows):
            yield slice(start + text.answer, start + len(text.ids))
            start += len(text.ids)

    def batch(self, indices: Sequence[int]) -> Batch:
        texts = [self.texts[index] for index in indices]
        ids, places, weight = rows_of(texts, self.before)
        top_ids = torch.from_numpy(np.concatenate([text.top_ids for text in texts]).astype(np.int64))
        logp = torch.from_numpy(np.concatenate([text.top_logp for text in texts]).astype(np.float32))
        return Batch(ids, places, weight, top_ids, logp, self._states(texts, ids.shape[1]))

    def _states(self, texts: Sequence[Text], width: int) -> Tensor | None:
        """The states of ``texts``, padded to ``width`` positions with zeros."""
        if self.states_before is None:
            return None
        first = len(self.before)
        states = torch.zeros(len(texts), width, *self.states_before.shape[1:], dtype=torch.bfloat16)
        states[:, :first] = self.states_before
        for row, text in enumerate(texts):
            assert text.states is not None, "asked for with states"
            states[row, first : first + len(text.ids)] = torch.from_numpy(np.array(text.states)).view(torch.bfloat16)
        return states


class Epochs:
    """The batches of a training by their numbers, counted over all epochs, so that a run that was killed goes on with
    the batch after its last one. Each epoch shuffles anew, and has as many batches as the first.
    """

    def __init__(self, texts: Texts, tokens: int) -> None:
        self.texts, self._tokens = texts, tokens
        self._begin(0)
        self._count = len(self._order)

    def _begin(self, epoch: int) -> None:
        self._epoch, self._order = epoch, self.texts.batches(self._tokens, epoch)

    def batch(self, number: int) -> Batch:
        epoch, place = divmod(number, self._count)
        if epoch != self._epoch:
            self._begin(epoch)
        return self.texts.batch(self._order[min(place, len(self._order) - 1)])
