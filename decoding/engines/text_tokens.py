"""The tokens of a text that a draft's reduced head lacks.

A reduced head proposes the tokens that are frequent in all texts (FR-Spec, Zhao et al. 2025). The rare ones of a text
are mostly those that it has already used, names above all: while they stand in the cache, the head has their rows too.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from .base import OUTSIDE

MOST = 256  # a long prompt may have thousands; the first ones count


class TextTokens:
    """The tokens of the text in a cache that are not among ``head_ids`` [k], in the order in which they come up.

    ``ids``: what the head can propose now, ``head_ids`` and then these. ``rows`` [MOST, hidden]: their rows of
    ``weight`` [vocab, hidden], the whole head. ``places`` [k + MOST]: ``head_ids``, then their ids, and ``vocab`` where
    there is none. All on the weight's device, for recorded passes.
    """

    ids: np.ndarray

    def __init__(self, head_ids: torch.Tensor, weight: torch.Tensor) -> None:
        self._weight = weight
        self._head_ids = head_ids.cpu().numpy()
        self._in_head = np.zeros(len(weight), dtype=bool)
        self._in_head[self._head_ids] = True
        exact = torch.float32 if weight.device.type == "cpu" else weight.dtype  # in which the products are quick
        self.rows = torch.zeros(MOST, weight.shape[1], dtype=exact, device=weight.device)
        self.places = torch.cat([head_ids, torch.full((MOST,), len(weight), device=weight.device)])
        self._first: dict[int, int] = {}  # where each of them stands first
        self._changed()

    def __len__(self) -> int:
        return len(self._first)

    def fork(self) -> TextTokens:
        """Those of another, empty cache."""
        return TextTokens(self.places[: len(self._head_ids)], self._weight)

    def read(self, ids: Iterable[int], start: int) -> None:
        """``ids`` are read at ``start`` and after it."""
        for place, token in enumerate(ids, start):
            if not self._in_head[token] and token not in self._first and len(self) < MOST:
                with torch.inference_mode():
                    self.rows[len(self)] = self._weight[token]
                    self.places[len(self.ids)] = token
                self._first[token] = place
                self._changed()

    def rewind(self, length: int) -> None:
        """Only the first ``length`` tokens of the text remain, and guesses, which are in the head or in them."""
        n = sum(place < length for place in self._first.values())
        if n < len(self):
            with torch.inference_mode():
                self.places[len(self._head_ids) + n :] = len(self._weight)
            self._first = dict(list(self._first.items())[:n])
            self._changed()

    def _changed(self) -> None:
        self.ids = np.concatenate([self._head_ids, np.array(list(self._first), dtype=np.int64)])
        self._newest = max(self._first.values(), default=-1)

    def own(self, hidden: torch.Tensor) -> torch.Tensor:
        """Their logits, [n, len(self)], of the head's input ``hidden`` [n, hidden]."""
        # Each product on its own: its bits then depend neither on the other rows nor on the number of tokens.
        return torch.mul(hidden.float()[:, None], self.rows[: len(self)]).sum(-1)

    def seen(self, own: torch.Tensor, end: int) -> torch.Tensor:
        """``own`` [n, len(self)], their logits of the last n tokens before place ``end``; OUTSIDE, in place, of those
        that come up later.
        """
        start = end - len(own)
        if self._newest > start:
            later = torch.tensor(list(self._first.values())) > torch.arange(start, end)[:, None]
            own.masked_fill_(later.to(own.device), OUTSIDE)
        return own
