"""The seam between the loop and the engines: one causal LM, batch 1, with a rewindable KV cache."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from ..errors import UserError
from ..records.trace import ModelInfo

DEFAULT_MAX_LENGTH = 8192  # tokens of cache, where the model itself could take more
OUTSIDE = -1e4  # logit of a token that a reduced head leaves out: its probability is 0, and 0 * OUTSIDE is no NaN


@runtime_checkable
class CachedModel(Protocol):
    """A causal LM that remembers what it has read, and can forget the end of it at no cost.

    The cache is allocated once; ``rewind`` only moves its end. Logits are float32, [n, vocab], on the model's
    device. ``last_hidden`` [n, hidden], float32, is the final-norm output (the input of the LM head) of the last
    call for as many rows as that call gave logits, where ``keep_hidden`` is set; else None.
    """

    info: ModelInfo
    length: int  # tokens in the cache
    max_length: int  # tokens that fit
    hidden_size: int
    vocab_size: int
    keep_hidden: bool
    last_hidden: torch.Tensor | None

    # What an engine may have beyond that; the defaults say that it has not.
    head_ids: np.ndarray | None = None  # a reduced head: the sorted ids that it may propose; extend_reduced is there
    works_on_device: bool = False  # greedy work without logits on the host: it is a DeviceModel
    records_graphs: bool = False  # CUDA graphs are recorded for its passes
    can_fork: bool = False  # fork() gives the same weights with a cache of its own
    tied: bool = False  # one tensor serves as embedding and as head
    cache_bytes_per_token: int = 0  # that a pass reads of the cache; 0 where it is not known
    note: str | None = None  # a sentence for the notes of a run

    def prefill(self, ids: list[int]) -> torch.Tensor:
        """Empty the cache, read ``ids`` and return the logits after the last of them, [1, vocab]."""

    def extend(self, ids: list[int]) -> torch.Tensor:
        """Append ``ids`` and return the logits after each of them, [n, vocab]."""

    def rewind(self, length: int) -> None:
        """Forget all tokens after the first ``length``."""


@runtime_checkable
class ReducedModel(CachedModel, Protocol):
    """A draft whose head holds some rows only (``head_ids``); ``extend`` gives all others a logit of OUTSIDE."""

    def extend_reduced(self, ids: list[int]) -> torch.Tensor:
        """As ``extend``, with the logits of ``head_ids`` alone, [n, len(head_ids)]."""


@runtime_checkable
class DeviceModel(CachedModel, Protocol):
    """An engine with greedy work that never brings logits to the host (cuda.py)."""

    def draft_step(self, ids: list[int], vocab: int) -> Any:
        """Append ``ids`` and propose the next token, with its features."""

    def draft_chain(self, ids: list[int], n: int, vocab: int) -> Any:
        """Append ``ids`` and propose ``n`` tokens, which stay on the device."""

    def check_chain(self, last: int, drafted: Any, vocab: int) -> tuple[list[int], list[int], int]:
        """Check such proposals: their ids, the first choices, how many are accepted."""

    def choices(self, ids: list[int], vocab: int) -> list[int]:
        """Append ``ids`` and return the first choice after each."""


def check_prompt(ids: list[int], max_length: int) -> None:
    """Refuse an empty prompt and one that does not fit, with a sentence (UserError)."""
    if not ids:
        raise UserError("The prompt gives no tokens: type some text for the models to continue.")
    check_room(0, len(ids), max_length)


def check_room(length: int, n_new: int, max_length: int) -> None:
    """Refuse ``n_new`` more tokens after ``length`` where they pass the context limit (UserError)."""
    if length + n_new > max_length:
        raise UserError(
            f"The text would be {length + n_new:,} tokens long; the model's context ends at {max_length:,}. "
            "Shorten the prompt or ask for fewer new tokens."
        )


def check_rewind(length: int, current: int) -> None:
    """A programming error, not a visitor's: there is nothing beyond ``current`` to keep."""
    if not 0 <= length <= current:
        raise ValueError(f"cannot rewind to {length}: the cache holds {current} tokens")
