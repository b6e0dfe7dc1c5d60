"""The features of a draft step for the policies, computed on the CPU in one pass over the draft's logits."""

from __future__ import annotations

from math import inf, log
from typing import NamedTuple

import numpy as np
import torch

from ..engines.base import OUTSIDE, CachedModel
from ..engines.compiled.readout import TOP, Reading, readout

FAR_BELOW = np.float32(-1e4)  # replaces -inf: its exponential is also 0, but 0 times it is not NaN


def as_rows(logits: torch.Tensor) -> np.ndarray:
    """Logits [n, vocab] as a float32 numpy array; float32 ones on the CPU as a view, not a copy."""
    return logits.float().cpu().numpy()  # neither copies what is float32 on the CPU


def all_rows(model: CachedModel, logits: torch.Tensor) -> np.ndarray:
    """Logits that ``model`` gave, over its whole vocabulary [n, vocab]: OUTSIDE for those that its head lacks."""
    rows = as_rows(logits)
    if model.head_ids is None:
        return rows
    whole = np.full((len(rows), model.vocab_size), OUTSIDE, dtype=np.float32)
    whole[:, model.head_ids] = rows
    return whole


class Features(NamedTuple):
    """Of a draft's distribution and its choice: the choice's probability; its ``margin``, ln p - ln p(its strongest
    rival), inf without a rival, and the ``entropy``, both in nats; the ten largest probabilities [10] float32, falling.
    """

    p: float
    margin: float = 0.0
    entropy: float = 0.0
    top10: np.ndarray | None = None


class FeatureReader:
    """Probability, margin, entropy and top-10 of one row of logits.

    After a pass of a model the CPU caches are cold, so the cost is the amount of code and memory touched: in a lane on
    a CPU with AVX2, the compiled readout took 65 us, torch's softmax 230 (with warm caches 10 and 15). Where nothing is
    compiled, torch computes all.
    """

    def __init__(self, vocab_size: int, masked: bool = False) -> None:
        """``masked``: some logits may be -inf (top-k, top-p), and the token need not be the most likely one."""
        self._masked = masked
        self._top, self._more = min(TOP, vocab_size), max(0, TOP - vocab_size)
        self._readout = readout()

    def read(
        self, row: np.ndarray, token: int, needs: frozenset[str], sure: float = inf, known: Reading | None = None
    ) -> Features:
        """Features of the draft's distribution softmax(row) and its choice ``token``.

        Args:
            row: [vocab] float32 logits, processed by the rule (unchanged at temperature 0); its token is masked for a
                moment.
            token: the draft's choice.
            needs: names of features; others may be missing.
            sure: entropy and top-10 are not computed for a token of at least this probability.
            known: what the engine has read of this row and token, if it has.
        """
        if self._readout is not None:
            found = known or self._readout(row, token)
            if found.p >= sure or not needs & {"entropy", "top10"}:
                return Features(found.p, found.margin)
            top10 = self._readout.top(row) / np.float32(found.total) if "top10" in needs else None
            return Features(found.p, found.margin, found.entropy, top10)
        margin = self._margin(row, token) if "margin" in needs else 0.0
        if not needs & {"p", "entropy", "top10"}:
            return Features(0.0, margin)
        tensor = torch.softmax(torch.from_numpy(row), 0)
        p = float(tensor[token])
        if p >= sure or not needs & {"entropy", "top10"}:
            return Features(p, margin)
        entropy = self._entropy(row, tensor.numpy(), token) if "entropy" in needs else 0.0
        return Features(p, margin, entropy, self._top_ten(tensor) if "top10" in needs else None)

    def _margin(self, row: np.ndarray, token: int) -> float:
        """The rule has just run argmax, so that its code is in the caches; that of max is not."""
        own = row[token]
        row[token] = -inf
        rival = row[row.argmax()]
        row[token] = own
        return float(own) - float(rival)

    def _entropy(self, row: np.ndarray, probabilities: np.ndarray, token: int) -> float:
        """H = log Z - sum(p l) for logits l, where log Z = l_i - log p_i at any likely i."""
        if self._masked:
            token = int(row.argmax())
            row = np.maximum(row, FAR_BELOW)
        log_z = float(row[token]) - log(float(probabilities[token]))
        return max(0.0, log_z - float(np.dot(probabilities, row)))

    def _top_ten(self, probabilities: torch.Tensor) -> np.ndarray:
        top = probabilities.topk(self._top)[0].numpy()
        return np.pad(top, (0, self._more)) if self._more else top
