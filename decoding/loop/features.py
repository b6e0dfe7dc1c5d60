"""The features of a draft step for the policies, computed on the CPU in one pass over the draft's logits."""

from __future__ import annotations

from math import inf, log

import numpy as np
import torch

from ..engines.base import OUTSIDE, CachedModel
from ..engines.compiled.readout import TOP, Reading, readout
from ..lookahead.base import DraftState

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


class FeatureReader:
    """Probability, margin (inf without a rival), entropy and top-10 of one row of logits, as far as a policy ``needs``
    them.

    After a pass of a model the CPU caches are cold, so the cost is the amount of code and memory touched: in a lane on
    a CPU with AVX2, the compiled readout took 65 us, torch's softmax 230 (with warm caches 10 and 15). Where nothing is
    compiled, torch computes all.
    """

    def __init__(self, needs: frozenset[str], vocab_size: int, masked: bool = False) -> None:
        """``masked``: some logits may be -inf (top-k, top-p), and the token need not be the most likely one."""
        self._needs, self._masked = needs, masked
        self._reads_all = bool(needs & {"entropy", "top10"})
        self._top, self._more = min(TOP, vocab_size), max(0, TOP - vocab_size)
        self._readout = readout()

    def read(self, state: DraftState, row: np.ndarray, token: int, known: Reading | None = None) -> None:
        """Appends the features of the draft's distribution softmax(row) and its choice ``token`` that are needed; of a
        token that is likelier than ``state.sure`` no entropy and no top-10.

        Args:
            row: [vocab] float32 logits, processed by the rule (unchanged at temperature 0); its token is masked for a
                moment.
            known: what the engine has read of this row and token, if it has.
        """
        needs = self._needs
        if self._readout is not None:
            found = known or self._readout(row, token)
            state.p.append(found.p)
            state.margin.append(found.margin)
            if self._reads_all and found.p < state.sure:
                state.entropy.append(found.entropy)
                if "top10" in needs:
                    state.top10.append(self._readout.top(row) / np.float32(found.total))
            return
        if "margin" in needs:
            state.margin.append(self._margin(row, token))
        if self._reads_all or "p" in needs:
            tensor = torch.softmax(torch.from_numpy(row), 0)
            state.p.append(float(tensor[token]))
            if "entropy" in needs and state.p[-1] < state.sure:
                state.entropy.append(self._entropy(row, tensor.numpy(), token))
            if "top10" in needs and state.p[-1] < state.sure:
                state.top10.append(self._top_ten(tensor))

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
