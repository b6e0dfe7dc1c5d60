"""The acceptance rules: how the draft proposes from its logits, and how the target verifies the proposals.

All rules see logits over the shared vocabulary only, since model families pad it differently for target and draft.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from math import exp

import numpy as np

from ..engines.compiled.readout import Reading
from ..records.proposal import SHARPNESS, Proposal, children_of, parents_in
from ..records.request import CompareRequest
from .sampling import Shaping, gumbel_noise, softmax, softmax_of_row

UNSHAPED = Shaping()
LEAST_MASS = 1e-6  # of a distribution from which a further sibling is drawn
Draws = list[tuple[float, float] | None] | None
Verified = tuple[Sequence[int], int]


class AcceptanceRule(ABC):
    """A lane's acceptance rule, over the logits of ``vocab_size`` ids, which ``shaping`` shapes.

    ``draws``: (acceptance probability, draw) of each token of the last verified proposal; None for those that were not
    examined, and if the rule draws nothing.
    """

    name: str
    draws: Draws = None

    def __init__(self, vocab_size: int, shaping: Shaping = UNSHAPED) -> None:
        self.vocab_size, self._shaping = vocab_size, shaping

    def reset(self) -> None:
        """Starts a lane or a repeat of it, from the same random state."""

    def shape(self, logits: np.ndarray) -> np.ndarray:
        """The logits after temperature, top-k and top-p, over the shared vocabulary; [n, vocab] or [vocab]."""
        return self._shaping.apply(logits[..., : self.vocab_size])

    @abstractmethod
    def propose(self, row: np.ndarray, position: int, ids: np.ndarray | None = None) -> tuple[int, np.ndarray]:
        """The draft's choice for output ``position`` from its logits, and the shaped logits.

        row: [vocab], or [k] logits of the tokens ``ids`` [k], to which the draft's head is reduced: it then gives all
        others no probability. The choice is an index into ``row``.
        """

    def propose_certain(self, token: int) -> None:
        """Records that the draft proposes ``token`` with probability 1 (n-gram)."""

    @abstractmethod
    def siblings(
        self, row: np.ndarray, position: int, node: int, ids: np.ndarray | None = None, known: Reading | None = None
    ) -> Siblings:
        """The draft's choices for output ``position`` of a tree, below ``node`` (-1: the text). As for ``propose``;
        ``known``: what the engine has read of the likeliest token, if it has.
        """

    @abstractmethod
    def verify(self, logits: np.ndarray, proposal: Proposal, start: int) -> Verified:
        """The accepted path of ``proposal``, as indices of its tokens, and the target's own token after it.

        logits: [len(proposal.tokens) + 1, vocab] of the target, after the text and after each token; ``start``: the
        output position after the text.
        """


REACH = 12.0  # nats below the best choice of a place, beyond which further ones are too unlikely to be tried


class Siblings:
    """The draft's choices for one place of a tree, one after the other; this base class has none.

    ``chance``: about how likely it is that the next of them is accepted once the place is reached; 0.0 if there is none
    left. Where choices are random it does not depend on the next one, so that no token is left out because of its id.
    """

    @property
    def chance(self) -> float:
        return 0.0

    def draw(self) -> tuple[int, float]:
        """The next choice: a token, and about how likely it is that this token is accepted."""
        raise IndexError("no choice is left")


class Ranked(Siblings):
    """Choices in the order of their ``scores``; of equals the first. ``chances``: of their acceptance."""

    def __init__(self, ids: np.ndarray, scores: np.ndarray, chances: np.ndarray) -> None:
        """``scores`` are changed."""
        self._ids, self._left, self._chances = ids, scores, chances
        self._best = int(scores.argmax())

    @property
    def chance(self) -> float:
        return float(self._chances[self._best]) if self._left[self._best] > -np.inf else 0.0

    def draw(self) -> tuple[int, float]:
        found = int(self._ids[self._best]), self.chance
        self._left[self._best] = -np.inf
        self._best = int(self._left.argmax())
        return found


class TwoKnown(Siblings):
    """Greedy choices for a place whose two likeliest tokens have been read. Few places have a third one drawn: only
    then are all of them ``ranked``.
    """

    def __init__(self, ids: np.ndarray | None, known: Reading, ranked: Callable[[], Ranked]) -> None:
        """``ids``: of the tokens that have logits; None: of all."""
        self._chance = 1.0 / known.sharp
        self._draws = self._all(ids, known, ranked)

    @property
    def chance(self) -> float:
        return self._chance

    def draw(self) -> tuple[int, float]:
        return next(self._draws)

    def _all(self, ids: np.ndarray | None, known: Reading, ranked: Callable[[], Ranked]) -> Iterator[tuple[int, float]]:
        first = chance = self._chance
        for token, margin in ((known.token, known.margin), (int(known.rival), known.beyond)):
            below = SHARPNESS * margin
            self._chance = first * exp(-below) if below < 0.999 * REACH else 0.0  # ranked() rounds otherwise
            yield token if ids is None else int(ids[token]), chance
            chance = self._chance
        others = ranked()
        for _ in range(2):
            others.draw()
        while True:
            found = others.draw()
            self._chance = others.chance
            yield found


def within(scores: np.ndarray, reach: float) -> np.ndarray:
    """The places of the scores that are lower than the best one by at most ``reach``: others are too unlikely."""
    return np.flatnonzero(scores >= scores[scores.argmax()] - reach)


def follow(choices: list[int], proposal: Proposal) -> Verified:
    """Walks along the target's ``choices``, after the text and after each token, as far as ``proposal`` has them."""
    if proposal.parents is None:
        n = next((i for i, token in enumerate(proposal.tokens) if token != choices[i]), len(proposal.tokens))
        return range(n), choices[n]
    below = {(parent, token): node for node, (parent, token) in enumerate(zip(proposal.parents, proposal.tokens))}
    path: list[int] = []
    node = below.get((-1, choices[0]))
    while node is not None:
        path.append(node)
        node = below.get((node, choices[node + 1]))
    return path, choices[path[-1] + 1 if path else 0]


class Greedy(AcceptanceRule):
    """Accepts while the draft's token is the target's first choice (temperature 0)."""

    name = "greedy"

    def propose(self, row: np.ndarray, position: int, ids: np.ndarray | None = None) -> tuple[int, np.ndarray]:
        row = row[: self.vocab_size]
        return int(row.argmax()), row

    def verify(self, logits: np.ndarray, proposal: Proposal, start: int) -> Verified:
        return follow(logits[:, : self.vocab_size].argmax(axis=1).tolist(), proposal)

    def siblings(
        self, row: np.ndarray, position: int, node: int, ids: np.ndarray | None = None, known: Reading | None = None
    ) -> Siblings:
        if known is None:
            return self._ranked(row, ids)
        return TwoKnown(ids, known, lambda: self._ranked(row, ids))

    def _ranked(self, row: np.ndarray, ids: np.ndarray | None) -> Ranked:
        row = row[: self.vocab_size]
        places = within(row, REACH / SHARPNESS)
        near = row[places]
        return Ranked(places if ids is None else ids[places], near, softmax_of_row(near * np.float32(SHARPNESS)))


class Coupling(AcceptanceRule):
    """Gumbel coupling: draft and target take argmax(log p + g) under the same noise g[position].

    Accepts while they agree. The text is the target's own sample under that noise for any draft (drafter-invariant:
    Daliri et al., arXiv 2408.07978), so all lanes of a seed emit the same text. It accepts with probability at least (1
    - TV) / (1 + TV), somewhat less than speculative sampling's 1 - TV.
    """

    name = "coupling"

    def __init__(self, vocab_size: int, shaping: Shaping, noise: np.ndarray) -> None:
        """``noise``: [positions, vocab] from :func:`.sampling.gumbel_noise`, drawn before the clock starts."""
        super().__init__(vocab_size, shaping)
        self._noise = noise

    def propose(self, row: np.ndarray, position: int, ids: np.ndarray | None = None) -> tuple[int, np.ndarray]:
        shaped, noise = self.shape(row), self._noise[position]
        return int((shaped + (noise if ids is None else noise[ids])).argmax()), shaped

    def verify(self, logits: np.ndarray, proposal: Proposal, start: int) -> Verified:
        if proposal.parents is None:
            return follow(self.choices(logits, slice(start, start + len(logits))), proposal)
        return follow(self.choices(logits, [start, *(start + depth + 1 for depth in proposal.depths)]), proposal)

    def siblings(
        self, row: np.ndarray, position: int, node: int, ids: np.ndarray | None = None, known: Reading | None = None
    ) -> Siblings:
        shaped, noise = self.shape(row), self._noise[position]
        noisy = shaped + (noise if ids is None else noise[ids])
        places = within(noisy, REACH)
        return Ranked(places if ids is None else ids[places], noisy[places], softmax_of_row(shaped)[places])

    def choices(self, logits: np.ndarray, positions: slice | list[int]) -> list[int]:
        """First choices under the noise of these output positions, one per row of ``logits``."""
        return (self.shape(logits) + self._noise[positions]).argmax(axis=1).tolist()


class _Drawn(Siblings):
    """The choices for one place, drawn without replacement from q, which is over all tokens or over ``ids`` and zero
    elsewhere; also the only choice of a chain.

    The draft draws all of them before the target examines the first, and for both q starts whole.
    """

    def __init__(self, q: np.ndarray, ids: np.ndarray | None, sample: Callable[[np.ndarray], int]) -> None:
        self._q, self._left, self._ids, self._sample = q, q, ids, sample
        self._places: dict[int, int] = {}  # in q, of the tokens drawn
        self._rejected: list[int] = []  # places in q that it has not lost yet

    @property
    def chance(self) -> float:
        """The mean probability of the next draw."""
        total = float(self._left.sum())
        return float((self._left**2).sum()) / total if total > LEAST_MASS else 0.0

    def draw(self) -> tuple[int, float]:
        token, place = self.draw_one()
        if self._left is self._q:
            self._left = self._q.copy()
        self._left[place] = 0.0
        return token, float(self._q[place])

    def draw_one(self) -> tuple[int, int]:
        """The next choice and its place in q, which stays drawable: of a chain it is the only one."""
        place = self._sample(self._left)
        token = place if self._ids is None else int(self._ids[place])
        self._places[token] = place
        return token, place

    def probability(self, token: int) -> float:
        """That of ``token`` among those that the target has not rejected."""
        if self._rejected:
            self._q = self._q.copy()
            self._q[self._rejected] = 0.0
            self._q /= self._q.sum()
            self._rejected = []
        return float(self._q[self._places[token]])

    def reject(self, token: int, p: np.ndarray) -> np.ndarray:
        """norm(max(0, p - q)), from which the text's token comes if not from another sibling; q loses ``token``."""
        rest = p.copy()
        rest[slice(None) if self._ids is None else self._ids] -= self._q
        np.maximum(0.0, rest, out=rest)
        self._rejected.append(self._places[token])
        total = rest.sum()
        return rest / total if total > 0.0 else p  # p and q differ by rounding only


class Sampling(AcceptanceRule):
    """Speculative sampling (Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2).

    A drafted x ~ q is accepted with probability min(1, p(x) / q(x)); the first rejected one is replaced by a sample of
    the residual norm(max(0, p - q)). If all are accepted, a bonus token is sampled from p. The text has the target's
    distribution but differs between lanes.
    """

    name = "sampling"

    def __init__(self, vocab_size: int, shaping: Shaping, seed: int) -> None:
        super().__init__(vocab_size, shaping)
        self._seed = seed
        self.reset()

    def reset(self) -> None:
        # One stream of fresh draws. With draws keyed by position, a re-drafted token would meet a draw to which an
        # adaptive policy may already have reacted.
        self._uniform = np.random.default_rng(self._seed).random
        self._drawn: dict[int, _Drawn] = {}  # by the node that the draws continue
        self.draws: Draws = []

    def propose(self, row: np.ndarray, position: int, ids: np.ndarray | None = None) -> tuple[int, np.ndarray]:
        shaped = self.shape(row)
        return self._next_of_chain(_Drawn(softmax(shaped), ids, self._sample)), shaped

    def propose_certain(self, token: int) -> None:
        self._next_of_chain(_Drawn(np.ones(1), np.array([token]), lambda q: 0))

    def _next_of_chain(self, drawn: _Drawn) -> int:
        self._drawn[len(self._drawn) - 1] = drawn
        return drawn.draw_one()[1]

    def siblings(
        self, row: np.ndarray, position: int, node: int, ids: np.ndarray | None = None, known: Reading | None = None
    ) -> Siblings:
        self._drawn[node] = drawn = _Drawn(softmax(self.shape(row)), ids, self._sample)
        return drawn

    def verify(self, logits: np.ndarray, proposal: Proposal, start: int) -> Verified:
        """In a tree SpecInfer's multi-step speculative sampling (Miao et al. 2024, Algorithm 2), for siblings drawn
        without replacement, as in recursive rejection sampling (Jeon et al. 2024): after each rejected sibling p
        becomes norm(max(0, p - q)), and q loses the sibling. A chain has one choice for each place.
        """
        p = softmax(self.shape(logits))
        below = children_of(parents_in(proposal.parents, len(proposal.tokens)))
        drawn, self._drawn = self._drawn, {}
        draws: list[tuple[float, float] | None] = [None] * len(proposal.tokens)
        self.draws = draws
        path: list[int] = []
        node = -1
        while True:
            left = p[node + 1]
            for child in below[node]:
                token = proposal.tokens[child]
                probability = min(1.0, float(left[token]) / drawn[node].probability(token))
                draw = self._uniform()
                draws[child] = probability, draw
                if draw < probability:
                    path.append(child)
                    break
                left = drawn[node].reject(token, left)
            else:
                return path, self._sample(left)
            node = path[-1]

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
