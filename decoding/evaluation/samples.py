"""The test material: chains of prompts, and the policies replayed on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..analysis.bootstrap import Bootstrap
from ..analysis.counts import Counts
from ..analysis.trees import Growth, simulate_trees
from ..analysis.whatif import Replay, Simulated
from ..lookahead.base import LookaheadPolicy, TreePolicy
from ..lookahead.fitted import make_policy
from ..lookahead.heads import Head
from ..lookahead.lanes import parse_lane
from ..records.trace import Costs
from .results import ALL, Figure


@dataclass(kw_only=True)
class Sample(Replay):
    """The text of one prompt of one suite. ``trees``: the growth of trees from each of its places."""

    prompt: str  # its id
    suite: str
    trees: list[Growth] | None = None

    def simulate(self, costs: Costs, policy: LookaheadPolicy, paid: Costs | None = None) -> Simulated:
        if isinstance(policy, TreePolicy) and self.trees is not None:
            return simulate_trees(self.chain, self.trees, costs, policy, self.max_new_tokens)
        return super().simulate(costs, policy, paid)


@dataclass
class Replayed:
    """One lane on the texts of ``samples`` at ``costs``. Arrays are by sample, in units of target_s."""

    lane: str
    samples: Sequence[Sample]
    costs: Costs
    simulated: list[Simulated]  # parallel to ``samples``
    cap: int | None = None  # the policy's own; None: it has none
    heads: Mapping[str, Head] | None = None  # of the draft, by policy

    @property
    def draft(self) -> str:
        return self.samples[0].chain.draft

    @property
    def policy(self) -> str:
        """The lane without its draft, as in the long table."""
        return self.lane.rpartition("/")[2]

    @cached_property
    def plain(self) -> np.ndarray:
        """The cost of plain decoding."""
        return self.tokens * self.costs.iteration(0, None)

    @cached_property
    def cost(self) -> np.ndarray:
        return np.array([one.cost for one in self.simulated])

    @cached_property
    def tokens(self) -> np.ndarray:
        return np.array([one.n_tokens for one in self.samples])

    @property
    def lengths(self) -> list[int]:
        """The guesses of each iteration."""
        return [n for one in self.simulated for _, n, _ in one.iterations]

    @cached_property
    def counts(self) -> Counts:
        """Over all samples."""
        return Counts(*map(sum, zip(*(one.counts for one in self.simulated))))

    @property
    def branches(self) -> bool:
        """Whether the lane guesses trees."""
        return any(one.steps is not None for one in self.simulated)

    @property
    def speedup(self) -> float:
        """Cost of plain decoding / cost of the lane, over all samples."""
        return float(self.plain.sum() / self.cost.sum())

    def pick(self, indices: Sequence[int]) -> Replayed:
        """The replays of some of the samples."""
        samples = [self.samples[i] for i in indices]
        return replace(self, samples=samples, simulated=[self.simulated[i] for i in indices])

    def speedup_figure(self, suite: str = ALL, metric: str = "speedup") -> Figure:
        """The speedup over these samples as a row of the long table, with its interval over prompts."""
        interval = Bootstrap(len(self.samples)).ratio(self.plain, self.cost)
        return Figure(self.draft, self.policy, suite, metric, *interval, len(self.samples))


def groups(samples: Sequence[Sample]) -> dict[str, list[int]]:
    """Indices of all samples (ALL), and of those of each suite."""
    found: dict[str, list[int]] = {ALL: list(range(len(samples)))}
    for index, sample in enumerate(samples):
        found.setdefault(sample.suite, []).append(index)
    return found


def replay_lane(
    lane: str, samples: Sequence[Sample], costs: Costs, heads: Mapping[str, Head] | None = None
) -> Replayed:
    """Replays ``lane`` on every sample. Raises UserError for a lane that cannot run (nothing fitted)."""
    parsed = parse_lane(lane)
    simulated = [one.simulate(costs, make_policy(parsed, heads)) for one in samples]
    return Replayed(lane, samples, costs, simulated, make_policy(parsed, heads).cap, heads)
