"""The interface between the loop and the policies that choose the speculation lookahead (SL)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import UserError
from ..records.proposal import Proposal
from ..records.trace import Chain, Costs

SL_CAP = 20  # of static policies and of those whose source sets it
SL_CAP_LEARNED = 64  # largest SL_max that fitting may choose for a learned policy
TREE_CAP = 32  # guesses in a tree, up to which trees are recorded


@dataclass(slots=True)
class DraftState(Proposal):
    """What a policy may see: the tokens drafted so far in this iteration, all of which the target will verify.

    The lists are parallel, one entry per drafted token, and right only if the policy ``needs`` them. ``proposer[i]`` is
    the draft's last hidden state (the input of its lm_head) that proposed token i; ``hidden[i]`` is the draft's last
    hidden state with drafted token i as its *input*: it exists one draft step later than the token, so the list may be
    one shorter. ``known`` holds acceptance probabilities that a learned policy need not compute (what-if replays); a
    live lane leaves it empty.

    Features are computed lazily: in a live lane they are missing for tokens whose features were not needed, and entropy
    and top-10 also for those with p >= ``sure``. A policy must read the last entry only.
    """

    start: int = 0  # output position of the iteration's first draft token
    text: list[int] = field(default_factory=list)  # prompt and output before this iteration (live lanes only)
    entropy: list[float] = field(default_factory=list)  # needs "entropy": nats
    top10: list[np.ndarray] = field(default_factory=list)  # needs "top10": [10] float32, descending
    margin: list[float] = field(default_factory=list)  # needs "margin": ln p - ln p of the strongest other token
    proposer: list[np.ndarray] = field(default_factory=list)  # needs "proposer": [hidden_size] float32
    hidden: list[np.ndarray] = field(default_factory=list)  # needs "hidden": [hidden_size] float32
    known: list[float] = field(default_factory=list)
    sure: float = math.inf  # set by the policy: a token of this p needs no further features
    steps: list[tuple[bool, int, float]] = field(default_factory=list)  # behind a tree: whether it read, node, chance

    @property
    def position(self) -> int:
        """Output position of the next draft token."""
        return self.start + len(self.tokens)

    @property
    def reads(self) -> int:
        """Draft passes behind a tree."""
        return sum(reads for reads, _, _ in self.steps)

    def begin(self, start: int) -> None:
        """Clears the last iteration; the next one starts at output position ``start``."""
        self.start = start
        self.parents = None
        columns: list[list] = [self.tokens, self.p, self.entropy, self.top10, self.margin, self.proposer, self.hidden]
        columns += [self.known, self.steps]
        for column in columns:
            column.clear()


@dataclass(slots=True)
class LaneContext:
    """What a policy gets once, before a lane starts. A policy never sees a clock."""

    draft: str | None  # name of the lane's draft
    costs: Costs
    max_new_tokens: int
    chain: Chain | None = None  # oracle only: the text, and where the draft's guesses hold
    prompt: Sequence[int] = ()  # ids; live lanes only

    def known_chain(self) -> Chain:
        """``chain``, for policies that need it."""
        assert self.chain is not None, "an oracle needs a recorded chain"
        return self.chain


class LookaheadPolicy(ABC):
    """Decides, before each draft step, whether to draft another token or to verify now.

    ``needs`` names the features that the loop computes for it: "p", "entropy", "top10", "margin", "proposer", "hidden".
    After a decision ``score`` and ``threshold`` are what it was based on (None: not applicable); it stops if the score
    is below the threshold, or above it with ``stops_above``.
    """

    name: str = ""
    needs: frozenset[str] = frozenset()
    cap: int | None = SL_CAP  # None: uncapped (the oracle)
    stops_above: bool = False
    score: float | None = None
    threshold: float | None = None

    def reset(self, context: LaneContext) -> None:
        """Starts a lane."""

    def planned(self, start: int) -> int | None:
        """The SL of the next iteration if it does not depend on drafted tokens; None: ask before each step."""
        return None

    def needs_features(self, state: DraftState) -> bool:
        """Whether the next decision reads the features of the last drafted token; asked in live lanes."""
        return True

    @abstractmethod
    def should_draft(self, state: DraftState) -> bool:
        """Whether to draft another token; asked before every draft step, including the first."""

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        """Receives an iteration's outcome. ``n_drafted`` is 0 if nothing was drafted: the policy refused,
        the draft had nothing to propose, or the token limit left no room.

        ``n_drafted`` may exceed the policy's own cap: an evaluation simulates a policy that never stops too soon.
        """


class ThresholdPolicy(LookaheadPolicy):
    """A policy that drafts on while the score of the last token, made from the feature it needs, passes a threshold.

    The token that does not pass is still verified.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        (self._feature,) = self.needs

    def judge(self, value: float) -> float:
        """The score of a token with this value of the feature, by default the value."""
        return value

    def should_draft(self, state: DraftState) -> bool:
        values = getattr(state, self._feature)
        if not values:
            self.score = self.threshold = None
            return True
        self.score, self.threshold = self.judge(values[-1]), self._threshold
        return self.score <= self.threshold if self.stops_above else self.score >= self.threshold


class TreePolicy(LookaheadPolicy):
    """A policy whose guesses branch. It decides on one step after the other, the likeliest first, and takes all that it
    does not refuse.

    ``cap``: the most guesses of an iteration. Of ``needs`` it gets no features: they only say that its draft must have
    probabilities. ``chance``: the approximate probability, by the draft, that the path to
    which the step leads is accepted.
    """

    cap: int

    def should_read(self, state: DraftState, chance: float) -> bool:
        """Whether the draft should read the text, or a guess, to continue below it; ``chance`` is that guess's."""
        return True

    def should_guess(self, state: DraftState, chance: float) -> bool:
        """Whether a further guess at a place that the draft has read joins the tree; ``chance`` is about its own."""
        return True

    def should_draft(self, state: DraftState) -> bool:
        raise UserError(
            f"The policy {self.name} guesses trees, which the chain of a run does not hold: measure or evaluate it."
        )

    def observe_tree(self, state: DraftState, path: Sequence[int]) -> None:
        """Receives the outcome of a verification: the tree, and the accepted guesses' indices."""


class PlannedPolicy(LookaheadPolicy):
    """A policy that chooses the SL of an iteration before its first draft step."""

    @abstractmethod
    def planned(self, start: int) -> int:
        """The SL of the iteration that starts at output position ``start``."""

    def should_draft(self, state: DraftState) -> bool:
        return len(state.tokens) < self.planned(state.start)
