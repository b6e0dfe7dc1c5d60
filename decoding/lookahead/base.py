"""The seam between the loop and the policies that choose the speculation lookahead (SL)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..records.trace import Costs

SL_CAP = 20  # of static policies and those whose source says so
SL_CAP_LEARNED = 64  # the most that fitting may choose as SL_max of a learned policy


@dataclass(slots=True)
class DraftState:
    """What a policy may look at: the tokens drafted so far in this iteration, all of which will be checked.

    The lists are parallel, one entry per drafted token, and filled only where the policy ``needs`` them.
    ``proposer[i]`` is the draft's last hidden state (the input of its lm_head) that proposed token i;
    ``hidden[i]`` is the draft's last hidden state with drafted token i as its *input*: it exists one draft
    step later than the token, so the list may be one shorter. ``scores[head]`` holds acceptance
    probabilities that are known without running the head (what-if replays); a live lane leaves it empty.

    Features are computed late: in a live lane those of tokens that a policy did not look at are missing, and
    entropy and top-10 of those with p >= ``sure`` too, so that a policy reads the last entry and no other.
    """

    start: int = 0  # output position of the iteration's first draft token
    text: list[int] = field(default_factory=list)  # prompt and output before this iteration (live lanes only)
    tokens: list[int] = field(default_factory=list)
    p: list[float] = field(default_factory=list)  # needs "p": the draft's probability of each drafted token
    entropy: list[float] = field(default_factory=list)  # needs "entropy": nats
    top10: list[np.ndarray] = field(default_factory=list)  # needs "top10": [10] float32, descending
    margin: list[float] = field(default_factory=list)  # needs "margin": ln p - ln p of the strongest other token
    proposer: list[np.ndarray] = field(default_factory=list)  # needs "proposer": [hidden_size] float32
    hidden: list[np.ndarray] = field(default_factory=list)  # needs "hidden": [hidden_size] float32
    scores: dict[str, list[float]] = field(default_factory=dict)
    sure: float = math.inf  # a policy's: a token of this p needs no more features

    @property
    def n_drafted(self) -> int:
        return len(self.tokens)

    @property
    def position(self) -> int:
        """Output position of the token that would be drafted next."""
        return self.start + len(self.tokens)

    def begin(self, start: int) -> None:
        """Forget the last iteration; the next one starts at output position ``start``."""
        self.start = start
        for column in (
            self.tokens,
            self.p,
            self.entropy,
            self.top10,
            self.margin,
            self.proposer,
            self.hidden,
        ):
            column.clear()
        for column in self.scores.values():
            column.clear()


@dataclass(slots=True)
class LaneContext:
    """What a policy is told once, before a lane starts. It never sees a clock."""

    draft: str | None  # name of the lane's draft
    costs: Costs
    max_new_tokens: int
    holds: Callable[[int], int] | None = None  # oracle only: how many guesses hold from an output position on
    n_tokens: int | None = None  # oracle only: length of the text that ``holds`` knows
    prompt: Sequence[int] = ()  # ids; live lanes only


class LookaheadPolicy:
    """Decides, before each draft step, whether to draft another token or to check now.

    ``needs`` names the features that the loop computes for it: "p", "entropy", "top10", "margin", "proposer",
    "hidden". After a decision ``score`` and ``threshold`` tell what it was based on (None: nothing to tell); it stops
    where the score is below the threshold, or above it where ``stops_above`` says so.
    """

    name: str = ""
    needs: frozenset[str] = frozenset()
    cap: int | None = SL_CAP  # None: uncapped (the oracle)
    stops_above: bool = False
    score: float | None = None
    threshold: float | None = None

    def reset(self, context: LaneContext) -> None:
        """Start a lane."""

    def planned(self, start: int) -> int | None:
        """The SL of the coming iteration where it depends on nothing drafted; None: ask step by step."""
        return None

    def looks(self, state: DraftState) -> bool:
        """Asked in live lanes before each decision: must the features of the last drafted token be computed for it?"""
        return True

    def should_draft(self, state: DraftState) -> bool:
        """Draft another token? Asked before every draft step, the first included."""
        raise NotImplementedError

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        """What the check of an iteration found. Nothing was drafted where the token limit left no room.

        ``n_drafted`` may lie above the policy's own cap: an evaluation asks what a policy would have done had it never
        stopped too soon.
        """
