"""The interface between the loop and the engines: one causal LM, batch 1, with a rewindable KV cache.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from ..errors import UserError
from ..records.trace import ModelInfo
from .inputs import Branches, EncodedPrompt

if TYPE_CHECKING:
    import torch

    from .compiled.readout import Reading
    from .projections import ParallelHeads, Projections

DEFAULT_MAX_LENGTH = 8192  # tokens of cache, if the model could take more
OUTSIDE = -1e4  # logit of a token outside a reduced head, where all are wanted: its probability is 0, not NaN


@runtime_checkable
class CachedModel(Protocol):
    """A causal LM with a KV cache whose end can be discarded at no cost.

    The cache is allocated once; ``rewind`` only moves its end. Logits are float32, [n, vocab], on the model's device;
    of a reduced head [n, len(head_ids)], OUTSIDE after tokens that stand before a token of ``head_ids`` comes up.

    ``last_states`` are the hidden states of the last call after each of ``kept_layers``, each [n, hidden] with one row
    per token read (the whole prompt, for ``prefill``), on the model's device and in its dtype. They are not copied:
    the engine's next pass may overwrite them. Layers count as in transformers' ``hidden_states``: 0 is the embedding, k
    the residual stream after k layers, and the last one, also -1, the final-norm output, which is the input of the LM
    head.
    """

    info: ModelInfo
    length: int  # tokens in the cache
    max_length: int  # tokens that fit
    hidden_size: int
    vocab_size: int
    kept_layers: tuple[int, ...]
    last_states: tuple[torch.Tensor, ...]

    # Optional abilities of an engine, all absent by default.
    # Of a reduced head: the ids whose logits the last call gave, frequent ones and those of the text (text_tokens.py).
    head_ids: np.ndarray | None = None
    likeliest: Reading | None = None  # of the last row of the last call, of a reduced head, if it has been read
    can_fork: bool = False  # fork() is there
    can_branch: bool = False  # extend() reads trees
    tied: bool = False  # embedding and head are one tensor
    note: str | None = None  # a sentence for the notes of a run
    projections: Projections | None = None  # a draft that reads hidden states: what they become beside a token
    parallel_heads: ParallelHeads | None = None  # all that it guesses with
    cache_bytes_per_token: int = 0  # that a pass reads; 0: unknown

    @property
    def records_graphs(self) -> bool:
        """Whether CUDA graphs are recorded for its passes."""
        return False

    def fork(self) -> CachedModel:
        """The same weights with a separate, empty cache; where ``can_fork``."""
        raise ValueError(f"the engine of {self.info.name} cannot share its weights between caches")

    def prefill(self, prompt: list[int] | EncodedPrompt) -> torch.Tensor:
        """Empties the cache, reads ``prompt`` and returns the logits after its last token, [1, vocab]."""

    def extend(
        self,
        ids: list[int],
        branches: Branches | None = None,
        added: torch.Tensor | None = None,
        last: int | None = None,
    ) -> torch.Tensor:
        """Appends ``ids`` and returns the logits after each of them, or after the ``last`` of them, [n, vocab].

        ``branches``, where ``can_branch``: the ids are nodes of a tree. Each is read at its own position and sees only
        the text and its ancestors, so its logits are those of a plain pass over its path. ``added`` [n, hidden_size],
        where ``projections``: to the embeddings of ``ids``.
        """

    def of_target(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """What is ``added`` after tokens of which these are the target's states, each [n, hidden_size]; where
        ``projections``.
        """
        assert self.projections is not None
        return self.projections.of_target(states)

    def rewind(self, length: int, rows: Sequence[int] = ()) -> None:
        """Keeps the first ``length`` tokens and ``rows``, which move up behind them; discards all others.

        ``rows``: of the cache, ascending: one path of a tree.
        """

    def set_threads(self, threads: int) -> None:
        """Changes the number of CPU threads."""
        self.info.threads = threads


def check_prompt(ids: list[int], max_length: int) -> None:
    """Raises UserError for a prompt that is empty or does not fit."""
    if not ids:
        raise UserError("The prompt gives no tokens: type a question for the model, or a text to continue.")
    check_room(0, len(ids), max_length)


def check_room(length: int, n_new: int, max_length: int) -> None:
    """Raises UserError if ``n_new`` more tokens after ``length`` exceed the context limit."""
    if length + n_new > max_length:
        raise UserError(
            f"The text would be {length + n_new:,} tokens long; the model's context ends at {max_length:,}. "
            "Shorten the prompt or ask for fewer new tokens."
        )


def check_rewind(length: int, current: int, rows: Sequence[int] = ()) -> None:
    """Raises ValueError, a programming error, for more than the ``current`` tokens, and for rows out of order."""
    if not 0 <= length <= current:
        raise ValueError(f"cannot rewind to {length}: the cache holds {current} tokens")
    if rows and not (length <= rows[0] and rows[-1] < current and all(a < b for a, b in pairwise(rows))):
        raise ValueError(f"cannot keep the rows {list(rows)} after {length} of {current} tokens")
