"""The acceptance rules: how the draft proposes from its logits, and how the target checks the proposals.

All rules see logits over the shared vocabulary only, since model families pad it differently for target and draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..records.request import CompareRequest
from .noise import gumbel_noise
from .sampling import Shaping, softmax


class AcceptanceRule(Protocol):
    """A lane's acceptance rule. ``draws``: (acceptance probability, draw) of each token examined in the last check."""

    name: str
    vocab_size: int
    draws: list[tuple[float, float]] | None

    def reset(self) -> None:
        """Starts a lane or a repeat of it, from the same random state."""

    def shape(self, logits: np.ndarray) -> np.ndarray:
        """The logits after temperature, top-k and top-p, over the shared vocabulary; [n, vocab] or [vocab]."""

    def propose(self, row: np.ndarray, position: int, ids: np.ndarray | None = None) -> tuple[int, np.ndarray]:
        """The draft's choice for output ``position`` from its logits, and the shaped logits.

        row: [vocab], or [k] logits of the tokens ``ids`` [k], to which the draft's head is reduced: it then gives all
        others no probability. The choice is an index into ``row``.
        """

    def propose_certain(self, token: int) -> None:
        """Records that the draft proposes ``token`` with probability 1 (n-gram)."""

    def check(self, logits: np.ndarray, drafted: list[int], start: int) -> tuple[int, int]:
        """The number of accepted tokens of ``drafted``, and the target's own token after them.

        logits: [len(drafted) + 1, vocab] of the target; ``start``: output position of the first drafted token.
        """


def agreeing(drafted: list[int], choices: list[int]) -> int:
    """Length of the common prefix of the draft's and the target's choices."""
    for index, token in enumerate(drafted):
        if token != choices[index]:
            return index
    return len(drafted)


class Greedy:
    """Accepts while the draft's token is the target's first choice (temperature 0)."""

    name = "greedy"
    draws: list[tuple[float, float]] | None = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def reset(self) -> None:
        pass

    def shape(self, logits: np.ndarray) -> np.ndarray:
        return logits[..., : self.vocab_size]

    def propose(self, row: np.ndarray, position: int, ids: np.ndarray | None = None) -> tuple[int, np.ndarray]:
        row = row[: self.vocab_size]
        return int(row.argmax()), row

    def propose_certain(self, token: int) -> None:
        pass

    def check(self, logits: np.ndarray, drafted: list[int], start: int) -> tuple[int, int]:
        choices = logits[:, : self.vocab_size].argmax(axis=1).tolist()
        n_accepted = agreeing(drafted, choices)
        return n_accepted, choices[n_accepted]


class Coupling:
    """Gumbel coupling: draft and target take argmax(log p + g) under the same noise g[position].

    Accepts while they agree. The text is the target's own sample under that noise for any draft (drafter-invariant:
    Daliri et al., arXiv 2408.07978), so all lanes of a seed emit the same text. It accepts with probability at least (1
    - TV) / (1 + TV), somewhat less than speculative sampling's 1 - TV.
    """

    name = "coupling"
    draws: list[tuple[float, float]] | None = None

    def __init__(self, vocab_size: int, shaping: Shaping, noise: np.ndarray) -> None:
        """``noise``: [positions, vocab] from :func:`.noise.gumbel_noise`, drawn before the clock starts."""
        self.vocab_size = vocab_size
        self._shaping = shaping
        self._noise = noise

    def reset(self) -> None:
        pass

    def shape(self, logits: np.ndarray) -> np.ndarray:
        return self._shaping.apply(logits[..., : self.vocab_size])

    def propose(self, row: np.ndarray, position: int, ids: np.ndarray | None = None) -> tuple[int, np.ndarray]:
        shaped, noise = self.shape(row), self._noise[position]
        return int((shaped + (noise if ids is None else noise[ids])).argmax()), shaped

    def propose_certain(self, token: int) -> None:
        pass

    def check(self, logits: np.ndarray, drafted: list[int], start: int) -> tuple[int, int]:
        choices = self.choices(logits, start)
        n_accepted = agreeing(drafted, choices)
        return n_accepted, choices[n_accepted]

    def choices(self, logits: np.ndarray, start: int) -> list[int]:
        """First choices under the noise from output position ``start`` on, one per row of ``logits``."""
        noisy = self.shape(logits) + self._noise[start : start + len(logits)]
        return noisy.argmax(axis=1).tolist()


@dataclass(slots=True)
class _Proposal:
    """q, the distribution that a token was drafted from: over all tokens, or over ``ids`` and zero elsewhere."""

    q: np.ndarray
    of_choice: float
    ids: np.ndarray | None


class Sampling:
    """Speculative sampling (Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2).

    A drafted x ~ q is accepted with probability min(1, p(x) / q(x)); the first rejected one is replaced by a sample of
    the residual norm(max(0, p - q)). If all are accepted, a bonus token is sampled from p. The text has the target's
    distribution but differs between lanes.
    """

    name = "sampling"

    def __init__(self, vocab_size: int, shaping: Shaping, seed: int) -> None:
        self.vocab_size = vocab_size
        self._shaping = shaping
        self._seed = seed
        self.reset()

    def reset(self) -> None:
        # One stream of fresh draws. With draws keyed by position, a re-drafted token would meet a draw to which an
        # adaptive policy may already have reacted.
        self._uniform = np.random.default_rng(self._seed).random
        self._proposals: list[_Proposal | None] = []  # per drafted token; None: one-hot
        self.draws: list[tuple[float, float]] | None = []

    def shape(self, logits: np.ndarray) -> np.ndarray:
        return self._shaping.apply(logits[..., : self.vocab_size])

    def propose(self, row: np.ndarray, position: int, ids: np.ndarray | None = None) -> tuple[int, np.ndarray]:
        shaped = self.shape(row)
        q = softmax(shaped)
        choice = self._sample(q)
        self._proposals.append(_Proposal(q, float(q[choice]), ids))
        return choice, shaped

    def propose_certain(self, token: int) -> None:
        self._proposals.append(None)

    def check(self, logits: np.ndarray, drafted: list[int], start: int) -> tuple[int, int]:
        p = softmax(self.shape(logits))
        proposals, self._proposals = self._proposals, []
        self.draws = []
        for index, token in enumerate(drafted):
            proposal = proposals[index]
            probability = min(1.0, p[index, token] / (1.0 if proposal is None else proposal.of_choice))
            draw = self._uniform()
            self.draws.append((float(probability), draw))
            if draw >= probability:
                return index, self._sample(self._residual(p[index], proposal, token))
        return len(drafted), self._sample(p[-1])

    def _residual(self, p: np.ndarray, proposal: _Proposal | None, token: int) -> np.ndarray:
        """max(0, p - q), not normalised; for a one-hot q this is p without its token."""
        residual = p.copy()
        if proposal is None:
            residual[token] = 0.0
            return residual
        residual[slice(None) if proposal.ids is None else proposal.ids] -= proposal.q
        return np.maximum(0.0, residual, out=residual)

    def _sample(self, weights: np.ndarray) -> int:
        """Samples a token with probability proportional to its weight, by inverting the cumulative weights."""
        cumulated = weights.cumsum()
        return int(cumulated.searchsorted(self._uniform() * cumulated[-1], side="right"))


def make_rule(request: CompareRequest, vocab_size: int, n_positions: int) -> AcceptanceRule:
    """The rule that ``request`` names, over the shared vocabulary; its noise is drawn here, untimed."""
    if request.rule == "greedy":
        return Greedy(vocab_size)
    shaping = Shaping(request.temperature, request.top_k, request.top_p)
    if request.rule == "coupling":
        return Coupling(vocab_size, shaping, gumbel_noise(request.seed, n_positions, vocab_size))
    return Sampling(vocab_size, shaping, request.seed)
