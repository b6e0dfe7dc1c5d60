"""The cost curves of a pair on this machine: c, v(n), o and what decisions cost; measured, then frozen."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..lookahead.base import DraftState, LaneContext, LookaheadPolicy
from ..lookahead.static import Static
from ..loop.acceptance import AcceptanceRule, Greedy
from ..loop.checking import make_checker
from ..loop.clock import POLICY, make_clock
from ..loop.drafting import NGRAM, prefill
from ..loop.limits import Limits
from ..loop.speculative import speculative_decode
from ..records.lanes import SL_CAP, SL_CAP_LEARNED
from ..records.trace import Costs
from .prepare import Prepared, make_source, shared_vocabulary

if TYPE_CHECKING:
    from ..engines.pair import Pair
    from ..records.lanes import Lane

MOST = SL_CAP + 1  # tokens of the longest check of a rule with the usual cap
LONG = (32, 48, SL_CAP_LEARNED + 1)  # of those with a higher one; between them v is interpolated
SPARSE = (1, 2, 3, 5, 8, 13, MOST)  # lengths up to MOST that are measured where a target pass is slow
STEPS = 8  # draft steps before each measured check, as in an iteration
BUDGET_S = 1.5
LOOP_TOKENS = 48

T = TypeVar("T")


def measure_costs(pair: Pair, drafts: list[str], prompt: list[int], *, context: int | None = None) -> Costs:
    """:func:`cost_rounds` in one go."""
    rounds = cost_rounds(pair, drafts, prompt, context=context)
    while True:
        try:
            next(rounds)
        except StopIteration as end:
            return end.value


def retold(rounds: Generator[float, None, Costs], tell: Callable[[float], T]) -> Generator[T, None, Costs]:
    """``rounds`` with ``tell(share)`` in the place of each share; what ``tell`` raises ends the measurement."""
    while True:
        try:
            share = next(rounds)
        except StopIteration as end:
            return end.value
        yield tell(share)


def cost_rounds(
    pair: Pair, drafts: list[str], prompt: list[int], *, context: int | None = None
) -> Generator[float, None, Costs]:
    """Time target passes over 1 to 21 tokens and some longer ones, and steps of each draft, interleaved as in a lane.

    Args:
        prompt: ids; repeated up to ``context`` tokens (default: the prompt and 64 more), where all is timed.

    Yields:
        Before each round, the share of the work that is done; who closes the generator ends the measurement.

    Returns:
        Medians over rounds, v smoothed over neighbouring n: ``target_s`` of a pass over one token right after
        another one (plain decoding); ``v[n - 1]`` of a pass over n tokens that follows draft steps, over
        ``target_s``; ``c`` of a draft step that follows another one, and ``first`` of what the step right after a
        target pass takes beyond that: the pass has put the draft's weights out of the caches, and a c with that
        in it would overprice long iterations (both from chains of 1 and of STEPS steps); ``o`` of the loop's own
        work in an iteration.
    """
    rule = Greedy(shared_vocabulary(pair, drafts))
    room = min([pair.target.max_length, *(make_source(pair, name, rule).max_length for name in drafts)])
    long = LONG if room - LONG[-1] >= len(prompt) else ()
    text = _repeat_to(prompt, context or len(prompt) + 64, room - max((*long, MOST)))
    timer = _Timer(pair, drafts, rule, text)
    lengths, rounds = timer.plan(long)
    for number in range(rounds):
        yield number / rounds
        timer.round(lengths)
    costs = timer.costs()
    return replace(costs, o=_measure_loop(pair, drafts, rule, prompt, costs))


class _Timer:
    """Times passes at one place in the text; every pass is forgotten right away."""

    def __init__(self, pair: Pair, drafts: list[str], rule: AcceptanceRule, text: list[int]) -> None:
        self._target = pair.target
        self._text = text
        self._clock = make_clock(pair.target.info.device)
        self._checker = make_checker(pair.target, None, rule)
        self._sources = {name: make_source(pair, name, rule) for name in drafts}
        self._checks: dict[int, list[float]] = {}
        self._chains: dict[str, dict[int, list[float]]] = {name: {1: [], STEPS: []} for name in drafts}
        prefill(self._target, text)
        for source in self._sources.values():
            source.start(text)

    def plan(self, long: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Warm up, and choose lengths (``long`` ones included) and rounds that fit the budget."""
        for n in (1, 2, MOST, 1):
            once = self._check(n)
        short = tuple(range(1, MOST + 1)) if once * MOST * 2 < BUDGET_S else SPARSE
        rounds = int(BUDGET_S / (once * (2.0 * (len(short) + 4) + 3 * len(long))))
        self._checks.clear()
        return short + long, min(9, max(4, rounds))

    def round(self, lengths: tuple[int, ...]) -> None:
        for _ in range(3):
            self._check(1)
        names = list(self._sources)
        for n in lengths[1:]:
            if names:
                self._draft(names[0], STEPS)
            self._check(n)
        for name in names:
            for steps in (1, STEPS, 1):
                self._check(2, keep=False)
                self._draft(name, steps)

    def costs(self) -> Costs:
        check = _smooth({n: median(times) for n, times in sorted(self._checks.items())})
        target_s = check[1]
        v = [_interpolate(check, n) / target_s for n in range(1, max(check) + 1)]
        begun = {name: median(chains[1]) for name, chains in self._chains.items()}
        steps = {name: _later_step(begun[name], median(chains[STEPS])) for name, chains in self._chains.items()}
        c = {name: step / target_s for name, step in steps.items()}
        first = {name: max(0.0, begun[name] - step) / target_s for name, step in steps.items()}
        return Costs(target_s=target_s, v=v, c=c, o=0.0, first=first)

    def _check(self, n: int, keep: bool = True) -> float:
        tokens = (self._text[-1:] + self._text)[:n]
        tokens += [self._text[-1]] * (n - len(tokens))
        state = DraftState(tokens=tokens[1:])
        self._clock.begin()
        self._checker.check(tokens[0], state)
        spent = sum(self._clock.end())
        self._target.rewind(len(self._text) - 1)
        if keep:
            self._checks.setdefault(n, []).append(spent)
        return spent

    def _draft(self, name: str, steps: int) -> None:
        source, state = self._sources[name], DraftState()
        self._clock.begin()
        source.chain(self._text, state, steps, frozenset())
        spent = sum(self._clock.end())
        source.forget(len(self._text) - 1)
        self._chains[name][steps].append(spent)


def _later_step(one: float, chain: float) -> float:
    """Seconds of a draft step that is not the first, from a chain of one step and one of STEPS.

    On a machine so busy that the longer chain came out cheaper, the mean step stands in: c is never 0.
    """
    return (chain - one) / (STEPS - 1) if chain > one else chain / STEPS


def _smooth(check: dict[int, float]) -> dict[int, float]:
    """The median of each value and its two neighbours: takes a stray value away and keeps a step.

    Plain decoding (n = 1) and the longest check stay as they were measured.
    """
    values = list(check.values())
    inner = [median(values[at - 1 : at + 2]) for at in range(2, len(values) - 1)]
    return dict(zip(check, [*values[:2], *inner, *values[-1:]]))


def _interpolate(check: dict[int, float], n: int) -> float:
    """Seconds of a check of ``n`` tokens, on the line between its measured neighbours."""
    if n in check:
        return check[n]
    low, high = max(k for k in check if k < n), min(k for k in check if k > n)
    return check[low] + (check[high] - check[low]) * (n - low) / (high - low)


def _repeat_to(prompt: list[int], length: int, most: int) -> list[int]:
    text = list(prompt)
    while len(text) < length:
        text += prompt
    return text[: max(1, min(length, most))]


def _measure_loop(pair: Pair, drafts: list[str], rule: AcceptanceRule, prompt: list[int], costs: Costs) -> float:
    """o: the median of what an iteration takes beside draft, check and policy, over ``target_s``."""
    draft = next((name for name in drafts if name != NGRAM), None)
    source = make_source(pair, draft, rule) if draft else None
    policy: LookaheadPolicy = Static(5 if draft else 0)
    prefill(pair.target, prompt)
    if source:
        source.start(prompt)
    room = max(1, pair.target.max_length - len(prompt))
    limits = Limits(min(LOOP_TOKENS, room))
    clock = make_clock(pair.target.info.device)
    times = [it.times for it in speculative_decode(pair.target, source, policy, rule, prompt, limits, clock)]
    return median(rest for *_, rest in times) / costs.target_s


def measure_decision(prepared: Prepared, lane: Lane, costs: Costs, n_tokens: int = 32) -> float:
    """What ``lane``'s features and decisions cost per drafted token, over ``target_s``: from a short decode.

    It serves as the lane's warm-up as well. Oracles and plain decoding decide for free, beforehand.
    """
    if lane.is_plain or lane.is_oracle:
        return 0.0
    policy = prepared.policy(lane)
    draft = prepared.draft_of(lane)
    policy.reset(LaneContext(draft, costs, n_tokens, prompt=prepared.prompt))
    prepared.rule.reset()
    source = prepared.source(draft, policy.needs)
    prefill(prepared.pair.target, prepared.prompt)
    source.start(prepared.prompt)
    limits = replace(prepared.limits, max_new_tokens=min(n_tokens, prepared.limits.max_new_tokens))
    clock = make_clock(prepared.pair.target.info.device)
    decode = speculative_decode(prepared.pair.target, source, policy, prepared.rule, prepared.prompt, limits, clock)
    spent = sorted((it.times[POLICY] / len(it.drafted), len(it.drafted)) for it in decode if it.drafted)
    return _trimmed_mean(spent) / costs.target_s if spent else 0.0


def _trimmed_mean(weighed: list[tuple[float, int]]) -> float:
    """Mean of (value, weight), ascending, without the twentieth of the weight at the top: there the machine was busy.

    A lazy rule's decisions are cheap in long iterations and dear in short ones; a median would take one for all.
    """
    values, weights = np.array(weighed, dtype=float).T
    kept = np.clip(0.95 * weights.sum() - (np.cumsum(weights) - weights), 0.0, weights)
    return float(np.average(values, weights=kept))


def smooth_costs(measured: Sequence[Costs]) -> Costs:
    """Medians of several measurements; v made to grow, by isotonic regression.

    One run's v(n) is good to some percent, and the tuning of static-opt would pick the SL whose v happened to be
    measured low. Reading more tokens never takes a pass less work.
    """
    from sklearn.isotonic import isotonic_regression

    v = [median(column) for column in zip(*(costs.v for costs in measured))]
    grown = [float(value) for value in isotonic_regression(v)]
    return Costs(
        target_s=median(costs.target_s for costs in measured),
        v=[value / grown[0] for value in grown],
        c={name: median(costs.c[name] for costs in measured) for name in measured[0].c},
        first={name: median(costs.first[name] for costs in measured) for name in measured[0].first},
        o=median(costs.o for costs in measured),
    )
