"""Toy models for tests: logits from a hash of the last few tokens, deterministic and quick.

The draft agrees with the target where a hash says so. ``ToyPair`` stands in for a loaded pair,
and ``finished_run`` gives a comparison's run, of any pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np
import torch

from decoding.comparison.compare import Comparison
from decoding.comparison.kept_costs import KnownCosts
from decoding.comparison.prepare import prepare
from decoding.engines.base import OUTSIDE, CachedModel, check_rewind
from decoding.engines.inputs import Branches, EncodedPrompt, encoded
from decoding.errors import UserError
from decoding.records.request import CompareRequest
from decoding.records.trace import ModelInfo, Run, TokenText

CONTEXT = 3  # tokens that the next one depends on


@cache
def _noise(seed: int, context: tuple[int, ...], vocab: int) -> np.ndarray:
    key = np.random.SeedSequence([seed, *context]).generate_state(2, dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).normal(size=vocab + 1)


@cache
def _logits(
    seed: int, context: tuple[int, ...], vocab: int, padded: int, agree: float | None, sharpness: float
) -> np.ndarray:
    """float32 (padded,): the row after ``context``; shared by all who ask, not to be written to."""
    logits = _noise(seed, context, vocab)[:-1] * sharpness
    if agree is not None:
        other = _noise(seed + 1, context, vocab)
        if (other[-1] % 1.0) >= agree:
            logits = other[:-1] * sharpness
        else:
            logits = logits + 0.02 * other[:-1] / (1 + abs(other[:-1]))
    row = np.full(padded, 50.0, dtype=np.float32)  # padding that would win, if it were looked at
    row[:vocab] = logits
    return row


class ToyModel(CachedModel):
    """A CachedModel without weights, which reads trees. With ``agree`` it is a draft of the target of the same seed.

    ``frequent``: the ids of a reduced head.
    """

    can_branch = True
    frequent: Sequence[int] | None = None

    def __init__(
        self,
        name: str = "target",
        vocab: int = 16,
        seed: int = 0,
        agree: float | None = None,
        max_length: int = 4096,
        padded: int = 0,
    ) -> None:
        self.name, self.seed, self.agree, self.sharpness = name, seed, agree, 2.0
        self.vocab_size, self.max_length, self.hidden_size = vocab + padded, max_length, 4
        self._vocab = vocab
        self.kept_layers, self.last_states = (), ()
        self._ids: list[int] = []
        self.passes: list[int] = []  # tokens of every pass
        self.info = ModelInfo(name, name, "", 0, 0, 4, self.vocab_size, "toy", "float32", "cpu", 1)

    @property
    def length(self) -> int:
        return len(self._ids)

    def prefill(self, prompt: list[int] | EncodedPrompt) -> torch.Tensor:
        self._ids = []
        return self._read(encoded(prompt).ids)[-1:]

    def extend(self, ids: list[int], branches: Branches | None = None) -> torch.Tensor:
        self.passes.append(len(ids))
        return self._read(ids, branches)

    def rewind(self, length: int, rows: Sequence[int] = ()) -> None:
        check_rewind(length, len(self._ids), rows)
        self._ids[length:] = [self._ids[row] for row in rows]

    def _read(self, ids: list[int], branches: Branches | None = None) -> torch.Tensor:
        assert ids, "a pass needs tokens"
        if len(self._ids) + len(ids) > self.max_length:
            raise UserError("The toy's context is full.")
        contexts, states = [], []
        for index, token in enumerate(ids):
            self._ids.append(token)
            text = self._ids
            if branches is not None:
                text = self._ids[: branches.trunk] + [self._ids[row] for row in branches.paths[index]]
            contexts.append(tuple(text[-CONTEXT:]))
            if self.kept_layers:
                states.append([token, len(self._ids), *contexts[-1][:2], 0, 0][:4])
        self.last_states = (torch.tensor(states, dtype=torch.float32),) * len(self.kept_layers)
        rows = np.array([self._row(context) for context in contexts])
        return torch.from_numpy(rows if self.frequent is None else self._reduced(rows, len(ids)))

    def _reduced(self, rows: np.ndarray, n: int) -> np.ndarray:
        """Logits of the frequent tokens, and of those of the text where they have come up."""
        own = [token for token in dict.fromkeys(self._ids) if token not in self.frequent]
        self.head_ids = np.array([*self.frequent, *own])
        first = np.array([-1] * len(self.frequent) + [self._ids.index(token) for token in own])
        places = np.arange(len(self._ids) - n, len(self._ids))
        return np.where(first <= places[:, None], rows[:, self.head_ids], np.float32(OUTSIDE))

    def _row(self, context: tuple[int, ...]) -> np.ndarray:
        return _logits(self.seed, context, self._vocab, self.vocab_size, self.agree, self.sharpness)


class ToyTokenizer:
    """Ids are letters; ``eos`` is an id or none."""

    def __init__(self, eos: int | None = None) -> None:
        self.eos_ids = frozenset() if eos is None else frozenset({eos})

    def encode(self, text: str) -> list[int]:
        return [ord(char) % 16 for char in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(97 + token) for token in ids)

    def token_text(self, token: int) -> TokenText:
        return TokenText(chr(97 + token))


class ToyPair:
    can_fork, chat = True, False

    def __init__(self, agree: float = 0.8, vocab: int = 16, seed: int = 0, eos: int | None = None, **options) -> None:
        self.name, self.default_draft = "toy", "small"
        self.tokenizer = ToyTokenizer(eos)
        target_length = options.get("target_length", 4096)
        self.target = ToyModel("target", vocab, seed, max_length=target_length, padded=options.get("padded", 0))
        self._drafts = {
            "small": ToyModel("small", vocab, seed, agree, max_length=options.get("draft_length", 4096)),
            "weak": ToyModel("weak", vocab, seed, agree / 3),
        }
        self.draft_names = list(self._drafts)
        self.loaded_drafts = dict(self._drafts)
        self.draft_folders: dict = {}
        self.draft_kinds: dict = {}

    def draft(self, name: str = "") -> ToyModel:
        name = name or self.default_draft
        if name not in self._drafts:
            raise UserError(f"The pair toy has no draft {name}.")
        return self._drafts[name]

    def encode_prompt(self, text: str, chat: bool | None = None, system: str = "", picture: str = "") -> EncodedPrompt:
        return EncodedPrompt(self.tokenizer.encode(f"{system}|{text}|" if chat else text))

    def fork(self) -> ToyPair:
        return deepcopy(self)


def unknown(pair) -> KnownCosts:
    """The costs of ``pair``, of which nothing is kept and nothing can be."""
    return KnownCosts(pair, Path("/proc/nowhere"))


def finished_run(request: CompareRequest, pair) -> Run:
    """Runs ``request`` and returns the run, without events. Raises UserError."""
    comparison = Comparison(prepare(request, pair), unknown(pair), lambda: False, "run")
    for _ in comparison.events():
        pass
    return comparison.run


def quick_run(lanes: list[str], pair=None, prompt: str = "abc", **settings) -> Run:
    """A short run of these lanes on ``pair``, or on toys; ``settings`` are other fields of the request."""
    settings = {"max_new_tokens": 40, "repeats": 1} | settings
    return finished_run(CompareRequest(prompt, lanes=lanes, **settings), pair or ToyPair())


def shape_of(run) -> list[tuple[int, int, int]]:
    """(start, drafted, accepted) of each iteration of a lane, live or recorded."""
    return [(it.start, len(it.drafted), it.n_accepted) for it in run.iterations]
