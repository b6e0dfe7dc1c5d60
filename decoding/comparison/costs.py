"""The cost curves of a pair on this machine: c, v(n), o and the cost of decisions; measured, then frozen.

The timings are of the loop itself: iterations of chosen SLs in a mixed order. After draft steps, a target pass
finds colder CPU caches than after another target pass, and the curves must match what happens in a lane. Fitted
curves never decrease, since more work cannot take less time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, cycle, islice
from statistics import median

import numpy as np

from ..engines.inputs import EncodedPrompt
from ..engines.pair import Pair
from ..errors import Cancelled
from ..lookahead.base import SL_CAP, SL_CAP_LEARNED, DraftState, PlannedPolicy, TreePolicy
from ..lookahead.lanes import Lane
from ..loop.acceptance import AcceptanceRule, Greedy
from ..loop.clock import DRAFT, POLICY, REST, VERIFY, make_clock
from ..loop.device_drafting import DeviceDraft
from ..loop.drafting import DraftAbilities, DraftSource, States, start_text
from ..loop.limits import Limits
from ..loop.speculative import RawIteration, speculative_decode
from ..records.trace import Costs
from .lane_run import UNWEIGHED, LaneRun
from .prepare import Prepared, abilities_of, make_draft, shared_vocabulary

SHORT = tuple(range(1, SL_CAP + 1))  # SLs that are measured
SPARSE = (1, 2, 4, 5, 6, 12, SL_CAP)  # those measured if a target pass is slow; after 5 v may rise by a step
LONG = (31, 47, SL_CAP_LEARNED)  # of learned policies; between them v is interpolated
STEPS = (1, 8)  # SLs for measuring c of further drafts
PLAIN = (0,) * 4  # iterations without a draft, all but the first after another one
BUDGET_S = 1.5
ROUNDS = 4, 9  # at least, at most
TRIED_SL, TRIALS = 5, 3  # iterations that kept curves are compared with
TOLERANCE = 1.25  # of what such an iteration takes, either way


def leader_of(pair: Pair, drafts: Sequence[str]) -> str | None:
    """The first of ``drafts`` that always has something to propose, if there is one."""
    return next((name for name in drafts if not abilities_of(pair, name).may_decline), None)


def measure_costs(
    pair: Pair,
    drafts: Sequence[str],
    prompt: list[int],
    context: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Costs:
    """The costs of a :class:`Timer` after all its rounds. Raises Cancelled."""
    timer = Timer(pair, drafts, prompt, context)
    for _ in timer.rounds():
        if cancelled():
            raise Cancelled
    return timer.costs()


class Timer:
    """Decodes iterations of given SLs after one text and records their times."""

    def __init__(self, pair: Pair, drafts: Sequence[str], prompt: list[int], context: int | None = None) -> None:
        """``prompt``: ids; repeated up to ``context`` tokens (default: the prompt and 64 more), where timing starts."""
        self._leader = leader_of(pair, drafts)
        self._target = pair.target
        self._rule: AcceptanceRule = Greedy(shared_vocabulary(pair, list(drafts)))
        self._sources: dict[str | None, DraftSource] = {name: make_draft(pair, name, self._rule) for name in drafts}
        if all(source.abilities.may_decline for source in self._sources.values()):
            self._sources[None] = _Echo()  # times verifications without a draft model
        self._clock = make_clock(pair.target.info.device)
        self._room = min([pair.target.max_length, *(source.max_length for source in self._sources.values())])
        length = min(context or len(prompt) + 64, self._room - SL_CAP_LEARNED - 1)
        self._text = list(islice(cycle(prompt), max(1, length)))
        self.clear()
        self._prompt = EncodedPrompt(self._text)
        start_text(self._target, self._sources.values(), self._prompt)

    def clear(self) -> None:
        """Discards all times."""
        self.plain: list[float] = []  # seconds of a pass over one token
        self.verifications: dict[str | None, dict[int, list[float]]] = {name: {} for name in self._sources}
        self.drafts: dict[str | None, dict[int, list[float]]] = {name: {} for name in self._sources}
        self.rest: list[float] = []

    def rounds(self) -> Iterator[float]:
        """Times iterations of SL 0 to 20 and some longer ones with the leader, and a few with each other draft.

        Yields the share of the work that is done, after each iteration; whoever stops asking ends the measurement.
        """
        lengths, rounds = self._plan()
        for number in range(rounds):
            order = [*lengths, *(LONG if number % 2 == 0 else ())]
            random.Random(number).shuffle(order)
            others = (name for name in self._sources if name != self._leader)
            turns = [(self._leader, [*PLAIN, *order]), *((name, STEPS + STEPS) for name in others)]
            for at, (name, lengths_now) in enumerate(turns):
                for share in self.read(name, lengths_now):
                    yield (number + (at + share) / len(turns)) / rounds

    def _plan(self) -> tuple[tuple[int, ...], int]:
        """Warm up, record the graphs of all SLs, and choose SLs and a number of rounds that fit the budget."""
        first = (*SHORT, *LONG) if self._target.records_graphs else (1, 8, SL_CAP)
        list(self.read(self._leader, [*PLAIN, *first, *PLAIN]))
        verify = median(self.plain)
        step = median(self.drafts[self._leader].get(8, [0.0])) / 8
        for name in self._sources:
            if name != self._leader:
                list(self.read(name, STEPS))
        self.clear()
        cost = {lengths: sum(n * step + 1.5 * verify for n in lengths) for lengths in (SHORT, SPARSE, LONG)}
        lengths = SHORT if 4 * cost[SHORT] < BUDGET_S else SPARSE
        a_round = cost[lengths] + cost[LONG] / 2 + len(PLAIN) * verify
        fewest, most = ROUNDS
        return lengths, min(most, max(fewest, int(BUDGET_S / a_round)))

    def read(self, draft: str | None, lengths: Sequence[int]) -> Iterator[float]:
        """Decode iterations of these SLs, one after the other, with ``draft`` (None: with none).

        Yields the share that is done.
        """
        before = None
        for done, iteration in enumerate(self._decode(self._sources[draft], lengths), start=1):
            n, times = len(iteration.drafted), iteration.times
            if n:
                self.verifications[draft].setdefault(n, []).append(times[VERIFY])
                self.drafts[draft].setdefault(n, []).append(times[DRAFT])
            elif before == 0:
                self.plain.append(times[VERIFY])
            self.rest.append(times[REST])
            before = n
            yield done / len(lengths)

    def _decode(self, source: DraftSource, lengths: Sequence[int]) -> Iterator[RawIteration]:
        """The loop after the text, restarted when the context ends."""
        schedule = _Schedule(lengths)
        limits = Limits(max(1, self._room - len(self._text)))
        while schedule.left:
            self._target.rewind(len(self._text) - 1)
            source.forget(len(self._text) - 1)
            decode = speculative_decode(
                self._target, source, schedule, self._rule, self._prompt, limits, self._clock, lambda: not schedule.left
            )
            yield from decode

    def costs(self) -> Costs:
        """The curves through all measured times; ``target_s`` is that of a pass over one token right after another
        one (plain decoding).
        """
        verifications = {1: self.plain} | {n + 1: times for n, times in self.verifications[self._leader].items()}
        drafts = {name: times for name, times in self.drafts.items() if name is not None}
        at_once = {name for name, source in self._sources.items() if source.abilities.at_once}
        return fit_costs(median(self.plain), verifications, drafts, self.rest, at_once)


class _Schedule(PlannedPolicy):
    """A policy that takes the SL of each iteration from a list."""

    name = "schedule"
    cap = None

    def __init__(self, lengths: Sequence[int]) -> None:
        self.left = list(reversed(lengths))

    def planned(self, start: int) -> int:
        return self.left.pop()


class _Echo(DraftSource):
    """A stand-in draft that proposes the last token repeatedly and costs no time."""

    name = "echo"
    abilities = DraftAbilities(certain=True)
    max_length = 2**31

    def start(self, prompt: EncodedPrompt, states: States) -> None:
        pass

    def step(self, text: list[int], state: DraftState) -> int:
        state.tokens.append(text[-1])
        return text[-1]

    def forget(self, length: int, path: Sequence[int] = ()) -> None:
        pass


def adjusted(kept: Costs, prepared: Prepared, plain_s: float | None) -> Costs:
    """``kept`` if a few iterations agree with it; else scaled to them, and no longer marked as ``measured``.

    ``plain_s``: the current time of a target pass over one token, if known; times are relative to it.
    """
    leader = leader_of(prepared.pair, prepared.drafts)
    kept = replace(kept, target_s=plain_s or kept.target_s)
    if leader is None:
        return kept
    timer = Timer(prepared.pair, [leader], prepared.prompt.ids, len(prepared.prompt))
    list(timer.read(leader, [*(PLAIN if plain_s is None else ()), *(TRIED_SL,) * TRIALS]))
    verifications, drafts = timer.verifications[leader].get(TRIED_SL), timer.drafts[leader].get(TRIED_SL)
    if not verifications or not drafts:  # the context is nearly full
        return kept
    plain_s = plain_s or median(timer.plain)
    verify, draft = median(verifications) / plain_s, median(drafts) / plain_s
    expected_verify = kept.verify(TRIED_SL + 1)
    expected_draft = kept.start(TRIED_SL, leader) + TRIED_SL * kept.draft_step[leader]
    found = replace(kept, target_s=plain_s)
    if 1 / TOLERANCE <= (verify + draft) / (expected_verify + expected_draft) <= TOLERANCE:
        return found
    return _bent(found, leader, draft / expected_draft, max(0.0, verify - 1.0) / max(1e-3, expected_verify - 1.0))


def _bent(costs: Costs, draft: str, steps: float, verifications: float) -> Costs:
    """``costs`` with the steps of ``draft`` scaled by one factor, and verification beyond a plain pass by another."""
    return replace(
        costs,
        draft_step={**costs.draft_step, draft: costs.draft_step[draft] * steps},
        first_step={**costs.first_step, draft: costs.start(1, draft) * steps},
        verify_curve=[1.0 + (v - 1.0) * verifications for v in costs.verify_curve],
        measured=None,
    )


def warm_up(prepared: Prepared, lane: Lane, costs: Costs = UNWEIGHED, n_tokens: int = 2) -> list[RawIteration]:
    """Decode a few tokens of ``lane`` off the clock."""
    limits = replace(prepared.limits, max_new_tokens=min(n_tokens, prepared.limits.max_new_tokens))
    return list(LaneRun(replace(prepared, limits=limits), lane, costs).decode_once())


def measure_decision(prepared: Prepared, lane: Lane, costs: Costs, n_tokens: int = 32) -> float:
    """The cost of ``lane``'s features and decisions per drafted token, over ``target_s``, from a short decode.

    This is also the lane's warm-up. Oracles and plain decoding decide in advance, at no cost. On a GPU it includes what
    a guess costs more than one of a planned chain: whoever decides after each guess must wait for it.
    """
    if lane.is_plain or lane.is_oracle:
        return 0.0
    found = _decision_of(warm_up(prepared, lane, costs, n_tokens), prepared, lane, costs)
    if found and isinstance(prepared.policy(lane), TreePolicy) and _waits(prepared, lane):
        # Waits come with draft passes. At no cost a tree has many guesses to each, at their cost few: measure it so.
        costs = replace(costs, decision={**costs.decision, lane.policy: found})
        found = _decision_of(warm_up(prepared, lane, costs, n_tokens), prepared, lane, costs) or found
    return found


def _decision_of(decoded: Sequence[RawIteration], prepared: Prepared, lane: Lane, costs: Costs) -> float:
    """The cost of ``lane``'s features and decisions per drafted token in these iterations; 0 without guesses."""
    drafting = [it for it in decoded if it.drafted]
    if not drafting:
        return 0.0
    found = _trimmed_mean(sorted((it.times[POLICY] / len(it.drafted), len(it.drafted)) for it in drafting))
    if not _waits(prepared, lane):
        return found / costs.target_s
    draft = prepared.draft_of(lane)
    assert draft is not None, "an n-gram draft is no model on a device"
    step = costs.draft_step[draft]
    beyond = [
        (it.times[DRAFT] / costs.target_s - costs.start(1, draft) - (it.reads or len(it.drafted)) * step)
        / len(it.drafted)
        for it in drafting
    ]
    return found / costs.target_s + max(0.0, median(beyond))  # a graph may have been recorded in some iterations


def _waits(prepared: Prepared, lane: Lane) -> bool:
    """Whether ``lane`` waits for each guess of a draft that is timed in chains that are planned."""
    planned = isinstance(prepared.policy(lane), PlannedPolicy)
    return not planned and isinstance(prepared.source(prepared.draft_of(lane)), DeviceDraft)


def _trimmed_mean(weighed: list[tuple[float, int]]) -> float:
    """Mean of (value, weight), ascending, without the top twentieth of the weight, where the machine was busy.

    A lazy policy's decisions are cheap in long iterations and expensive in short ones; a median would pick one of the
    two.
    """
    values, weights = np.array(weighed, dtype=float).T
    kept = np.clip(0.95 * weights.sum() - (np.cumsum(weights) - weights), 0.0, weights)
    return float(np.average(values, weights=kept))


def fit_costs(
    target_s: float,
    verifications: Mapping[int, Sequence[float]],
    drafts: Mapping[str, Mapping[int, Sequence[float]]],
    rest: Sequence[float],
    at_once: Collection[str | None] = (),
) -> Costs:
    """The curves through times in seconds, over ``target_s``.

    Args:
        verifications: of target passes, by their number of tokens.
        drafts: by draft, then by SL: of drafting. The line through them gives c, the slope, and ``first``, the fixed
            cost (the target's pass evicts the draft's weights from the CPU caches; including this in c would
            overestimate long iterations).
        rest: of the loop's own work, by iteration; ``o`` is their median.
        at_once: drafts that make all guesses with the first one.
    """
    steps = {name: fit_steps(times, name in at_once) for name, times in drafts.items()}
    return Costs(
        target_s=target_s,
        verify_curve=fit_verification(verifications),
        draft_step={name: step / target_s for name, (step, _) in steps.items()},
        first_step={name: first / target_s for name, (_, first) in steps.items()},
        overhead=median(rest) / target_s,
        contradiction=contradiction(verifications),
    )


def fit_verification(seconds: Mapping[int, Sequence[float]]) -> list[float]:
    """v(1), v(2), ... up to the largest n that was timed: medians by isotonic regression, divided by that of n = 1.

    Args:
        seconds: the times of target passes, by their number of tokens. Between measured lengths v is linear.
    """
    from scipy.optimize import isotonic_regression

    lengths = sorted(seconds)
    medians = [median(seconds[n]) for n in lengths]
    grown = isotonic_regression(medians, weights=[len(seconds[n]) for n in lengths]).x
    v = np.interp(range(lengths[0], lengths[-1] + 1), lengths, grown / grown[0])
    return [float(one) for one in v]


def fit_steps(seconds: Mapping[int, Sequence[float]], at_once: bool = False) -> tuple[float, float]:
    """(time per draft step, fixed time of drafting): the line through the times of chains of n steps.

    Long chains weigh less because their errors are larger. If the line decreases (a busy machine), the mean step is
    used: a step is never free, unless the draft makes all guesses ``at_once``. (0, 0) if it never proposed anything.
    """
    lengths = sorted(seconds)
    if not lengths:
        return 0.0, 0.0
    medians = np.array([median(seconds[n]) for n in lengths])
    n = np.array(lengths, dtype=float)
    step, first = np.polyfit(n, medians, 1, w=1.0 / n) if len(n) > 1 else (0.0, 0.0)
    if step > 0.0 and first >= 0.0:
        return float(step), float(first)
    if at_once:
        return 0.0, float(np.mean(medians))
    return float(np.mean(medians / n)), 0.0


def contradiction(seconds: Mapping[int, Sequence[float]]) -> float:
    """The largest share by which a pass over more tokens was measured as cheaper than one over fewer."""
    medians = [median(seconds[n]) for n in sorted(seconds)]
    return max((1.0 - read / highest for read, highest in zip(medians, accumulate(medians, max))), default=0.0)


def smooth_costs(measured: Sequence[Costs]) -> Costs:
    """Medians of several measurements; v is made monotone by isotonic regression.

    One run's v(n) has errors of some percent, and the tuning of static-opt would pick an SL whose v happened to be
    measured low.
    """
    v = fit_verification(
        {n: column for n, column in enumerate(zip(*(costs.verify_curve for costs in measured)), start=1)}
    )
    return Costs(
        target_s=median(costs.target_s for costs in measured),
        verify_curve=v,
        draft_step={name: median(costs.draft_step[name] for costs in measured) for name in measured[0].draft_step},
        first_step={name: median(costs.first_step[name] for costs in measured) for name in measured[0].first_step},
        overhead=median(costs.overhead for costs in measured),
        contradiction=median(costs.contradiction for costs in measured),
    )
