"""A comparison runs several lanes on one prompt: it yields events and ends with the run file's content."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import asdict, replace
from statistics import mean, median
from time import perf_counter
from typing import Any

from ..errors import Cancelled
from ..lookahead.lanes import Lane
from ..loop.clock import VERIFY
from ..loop.speculative import RawIteration
from ..records.events import Kind, RawEvents
from ..records.request import CompareRequest
from ..records.run_file import to_plain
from ..records.trace import Costs, Run
from .annotate import fate_of, fate_of_emitted
from .assemble import Decoded, assemble, pair_info, timed_again
from .chain import chain_of
from .costs import Timer, adjusted, measure_decision, smooth_costs, warm_up
from .kept_costs import KnownCosts
from .lane_run import UNWEIGHED, LaneRun
from .prepare import Prepared, prepare

Cancel = Callable[[], bool]
Timing = Generator[tuple[Kind, dict[str, Any]], None, LaneRun]  # yields a lane's events and returns its run

FLUSH_S = 0.05  # live iterations are sent in batches of this many seconds
MANY_REPEATS = 5  # a run with this many repeats is made to be kept: its cost curves are read READINGS times
READINGS = 3
MEASURING = "Timing single passes of both models, for the simulated lane and for policies that use costs"
CHECKING = "Checking a few passes against the stored cost curves"


def compare(request: CompareRequest, known: KnownCosts, cancel: Cancel, run_id: str) -> RawEvents:
    """Run ``request`` on the pair of which these costs are ``known``; yields its events, of which the last is
    ``finished``, with the run. Raises UserError for bad input, Cancelled once ``cancel()`` is true.
    """
    prepared = prepare(request, known.pair, known.chosen)
    yield from Comparison(prepared, known, cancel, run_id).events()


def _progress(stage: str, message: str, fraction: float | None = None) -> dict[str, Any]:
    return {"stage": stage, "message": message, "fraction": fraction}


class Comparison:
    """One comparison, from a prepared request to a run.

    The plain lane comes first: it needs no costs, so it starts immediately, and its text is the reference for all
    others. Then everything that they need is measured untimed: cost curves, and for oracles the draft's chain along
    that text. After every lane's first repeat there is a replay. Then both models read the texts again, for what-if
    and for the reason of each fate. Last, the other repeats refine the times, round robin. From the first replay on
    the run is a result: ``cancel`` ends it with what was measured so far.
    """

    def __init__(self, prepared: Prepared, known: KnownCosts, cancel: Cancel, run_id: str) -> None:
        self.prepared = prepared
        self._known = known
        self._cancel = cancel
        self._run_id = run_id
        notes = [[prepared.notes[lane.text]] if lane.text in prepared.notes else [] for lane in prepared.lanes]
        self._decoded = Decoded(UNWEIGHED, [[] for _ in prepared.lanes], notes)
        self._plain: LaneRun | None = None  # the first run of the plain lane, of which there is at most one
        self._sent: set[int] = set()  # token ids whose texts were sent
        self.run: Run

    def events(self) -> RawEvents:
        """All events of the comparison; the last one is ``finished``. Raises Cancelled, UserError."""
        request = self.prepared.request
        lanes = [lane.text for lane in self.prepared.lanes]
        yield "started", {"settings": asdict(request), "pair": asdict(pair_info(self.prepared)), "lanes": lanes}
        yield from self._first_repeat()
        self.run = assemble(self.prepared, self._decoded, self._run_id, explained=False)
        yield self._replay(1)
        try:
            yield from self._read_again()
            yield from self._other_repeats()
        except Cancelled:
            pass
        yield "finished", {"run": to_plain(self.run)}

    def _other_repeats(self) -> RawEvents:
        repeats = self.prepared.request.repeats
        if repeats > 1:
            yield self._replay(1)
        for repeat in range(1, repeats):
            yield from self._repeat(repeat)
            self.run = timed_again(self.run, self._decoded)
            if repeats <= MANY_REPEATS:
                yield self._replay(repeat + 1)

    # -- the first repeat

    def _first_repeat(self) -> RawEvents:
        prepared = self.prepared
        plain = next((index for index, lane in enumerate(prepared.lanes) if lane.is_plain), None)
        if plain is not None:
            lane = prepared.lanes[plain]
            if lane.text not in self._known.warm:
                warm_up(prepared, lane)
                self._known.warm.add(lane.text)
            self._plain = yield from self._first_time(plain)
        if prepared.request.rule != "sampling":  # every lane emits the same text
            yield from self._find_reference()
        yield from self._find_costs()
        yield from self._look_ahead()
        yield from self._warm_up()
        for index in range(len(prepared.lanes)):
            if index != plain:
                yield from self._first_time(index)

    def _find_reference(self) -> RawEvents:
        """The target's own text: the plain lane's, else decoded off the clock."""
        self._decoded.reference = self._plain
        if self._plain is not None:
            return
        yield "progress", _progress("chain", "Not timed: the target writes its text, for comparison")
        lane = Lane("autoregressive", None, "autoregressive", None)
        self._decoded.reference = LaneRun(self.prepared, lane).run(self._cancel)
        self._check_cancel()

    def _look_ahead(self) -> RawEvents:
        """The chains of the oracle lanes' drafts."""
        names = (self.prepared.draft_of(lane) for lane in self.prepared.lanes if lane.is_oracle)
        for draft in dict.fromkeys(name for name in names if name is not None):
            yield from self._record_chain(draft, "the oracle and What if")

    def _record_chain(self, draft: str, used_for: str) -> RawEvents:
        """What ``draft`` would guess along the reference."""
        reference = self._decoded.reference
        assert reference is not None, "no oracle runs without the target's own text"
        yield "progress", _progress("chain", f"Not timed: all that {draft} would guess, for {used_for}")
        self._decoded.chains[draft] = chain_of(self.prepared, draft, reference.output, self._cancel)

    def _warm_up(self) -> RawEvents:
        """Warms up the lanes, whose first passes in a process are slow, and measures the cost of their decisions."""
        found: dict[tuple[str | None, str], list[float]] = {}  # by draft and policy
        lanes = self.prepared.lanes
        for number, lane in enumerate(lanes, 1):
            if lane.text in self._known.warm and lane.policy in self._decoded.costs.decision:
                continue
            yield "progress", _progress("warming up", f"Not timed: warming up lane {number} of {len(lanes)}")
            cost = measure_decision(self.prepared, lane, self._decoded.costs)
            found.setdefault((self.prepared.draft_of(lane), lane.policy), []).append(cost)
            self._known.warm.add(lane.text)
            self._check_cancel()
        if self._known.given:  # the decisions of a repeated run weigh its own costs
            return
        of_policy: dict[str, list[float]] = {}
        for (draft, policy), measured in found.items():
            of_policy.setdefault(policy, []).extend(measured)
            drafts = [draft] if draft else self.prepared.drafts
            self._known.add_decisions(drafts, self._context, {policy: mean(measured)})
        decision = {policy: mean(measured) for policy, measured in of_policy.items()}
        costs = self._decoded.costs
        self._decoded.costs = replace(costs, decision={**costs.decision, **decision})

    # -- cost curves

    @property
    def _context(self) -> int:
        """The approximate context length at which costs are measured."""
        return len(self.prepared.prompt) + self.prepared.limits.max_new_tokens // 2

    def _find_costs(self) -> RawEvents:
        """The given costs; or the kept ones, scaled where a few passes do not agree; or else newly measured ones."""
        drafts, known = self.prepared.drafts, self._known
        if known.given:
            self._decoded.costs = replace(known.given, target_s=self._plain_seconds() or known.given.target_s)
            return
        kept = known.find(drafts, self._context) if self.prepared.request.repeats < MANY_REPEATS else None
        if kept is None:
            yield from self._measure()
            known.keep(drafts, self._context, self._decoded.costs)
            return
        yield "progress", _progress("measuring", CHECKING)
        found = adjusted(kept, self.prepared, self._plain_seconds())
        if found.measured is None:  # they no longer fit
            known.misfit(drafts, self._context)
        self._decoded.costs = found
        self._check_cancel()

    def _measure(self) -> RawEvents:
        """Newly measured costs, with progress events in steps of a tenth."""
        yield "progress", _progress("measuring", MEASURING, 0.0)
        prepared, readings, told = self.prepared, list[Costs](), 0.0
        wanted = READINGS if prepared.request.repeats >= MANY_REPEATS else 1
        while len(readings) < wanted:
            timer = Timer(prepared.pair, prepared.drafts, prepared.prompt.ids, self._context)
            for share in timer.rounds():
                self._check_cancel()
                done = (len(readings) + share) / wanted
                if done >= told + 0.1:
                    told = done
                    yield "progress", _progress("measuring", MEASURING, done)
            readings.append(timer.costs())
        self._decoded.costs = smooth_costs(readings)

    def _plain_seconds(self) -> float | None:
        """Seconds of a target pass over one token in this run, if the plain lane has been decoded."""
        return median(one.times[VERIFY] for one in self._plain.iterations) if self._plain else None

    # -- on the clock

    def _first_time(self, index: int) -> Timing:
        run = yield from self._time(index, 0)
        self._decoded.lanes[index].append(run)
        return run

    def _repeat(self, repeat: int) -> RawEvents:
        """Every lane once more. Only repeats with all lanes count: their times are compared with one another."""
        runs = []
        for index in range(len(self.prepared.lanes)):
            runs.append((yield from self._time(index, repeat)))
        others = [index for index, run in enumerate(runs) if _shape(run) != _shape(self._decoded.lanes[index][0])]
        for index in others:
            self._decoded.notes[index].append(
                "A repeat whose iterations differed from the first one's was left out, in all lanes."
            )
        if not others:
            for kept, run in zip(self._decoded.lanes, runs):
                kept.append(run)

    def _time(self, index: int, repeat: int) -> Timing:
        """One repeat of one lane."""
        lane = self.prepared.lanes[index]
        yield "lane_started", {"lane": index, "repeat": repeat}
        chain = self._decoded.chains.get(self.prepared.draft_of(lane) or "") if lane.is_oracle else None
        run = LaneRun(self.prepared, lane, self._decoded.costs, chain)
        yield from self._live(index, repeat, run)
        self._check_cancel()
        yield "lane_finished", {"lane": index, "repeat": repeat, "decode_s": run.decode_s}
        return run

    def _live(self, index: int, repeat: int, run: LaneRun) -> RawEvents:
        """Decode, and yield the iterations in batches, during which the clock is stopped; the first one immediately."""
        sent, last = 0, 0.0
        for iteration in run.decode(self._cancel):
            if perf_counter() - last < FLUSH_S and iteration.finish is None:
                continue
            yield "iterations", self._live_data(index, repeat, sent, run.iterations[sent:])
            sent, last = len(run.iterations), perf_counter()

    def _live_data(self, index: int, repeat: int, first: int, raw: list[RawIteration]) -> dict[str, Any]:
        ids = {token for it in raw for token in (*it.drafted, *it.tokens)} - self._sent
        self._sent |= ids
        texts = {token: self.prepared.pair.tokenizer.token_text(token) for token in sorted(ids)}
        return {
            "lane": index,
            "repeat": repeat,
            "first": first,
            "items": [live_iteration(iteration) for iteration in raw],
            "texts": {str(token): ["" if text.special else text.text, text.bytes] for token, text in texts.items()},
        }

    def _replay(self, timings: int) -> tuple[Kind, dict[str, Any]]:
        """The run so far: what a visitor watches while the rest is measured."""
        return "replay", {"run": to_plain(self.run), "timings": timings, "of": self.prepared.request.repeats}

    # -- off the clock, after the first repeat

    def _read_again(self) -> RawEvents:
        """The drafts' guesses after each mistake, and the reason for each token's fate."""
        missing = [] if self._decoded.reference is None else self.prepared.drafts
        for draft in [name for name in missing if name not in self._decoded.chains]:
            yield from self._record_chain(draft, "What if")
            self.run = assemble(self.prepared, self._decoded, self._run_id, explained=False)  # with their texts
        yield "progress", _progress("explaining", "Reading the texts again to explain each token's fate")
        self.run = assemble(self.prepared, self._decoded, self._run_id, explained=True)

    def _check_cancel(self) -> None:
        if self._cancel():
            raise Cancelled


def live_iteration(raw: RawIteration) -> dict[str, Any]:
    """An iteration for the page while the lane runs: ids, fates and times only."""
    emitted = None if raw.emitted is None else [raw.emitted, fate_of_emitted(raw)]
    return {
        "d": [[token, fate_of(raw, index)] for index, token in enumerate(raw.drafted)],
        "e": emitted,
        "start": raw.start,
        "t": list(raw.times),
        **({} if raw.parents is None else {"parents": raw.parents, "reads": raw.reads}),
    }


def _shape(run: LaneRun) -> list[tuple]:
    return [(it.start, it.drafted, it.parents, it.n_accepted, it.emitted) for it in run.iterations]
