"""A comparison runs several lanes on one prompt: it yields events and ends with the run file's content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime, timezone
from statistics import mean
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engines.loading import gpu_name
from ..errors import Cancelled
from ..lookahead.base import SL_CAP
from ..lookahead.lanes import Lane
from ..loop.drafting import abilities_of, prefill
from ..loop.features import as_rows
from ..loop.speculative import RawIteration
from ..records.events import Kind, Told, new_id
from ..records.machine import describe_machine
from ..records.request import CompareRequest
from ..records.run_file import run_to_dict
from ..records.trace import Chain, Costs, PairInfo, Repeat, Run, TokenText, Trace, Verdict
from .annotate import Annotator, fate_of, fate_of_emitted
from .chain import record_chain
from .cost_curves import smooth_costs
from .costs import cost_rounds, measure_decision, with_progress
from .lane_run import LaneRun
from .prepare import ALL_FEATURES, Prepared, model_info, models_of, prepare

if TYPE_CHECKING:
    from ..engines.pair import Pair

Cancel = Callable[[], bool]

FLUSH_S = 0.05  # live iterations are sent in batches of this many seconds
MANY_TOKENS = 4000  # tokens in all lanes beyond which fewer alternatives are kept, since the file has a size limit
MANY_REPEATS = 5  # from this many repeats on, the cost curves are measured READINGS times
READINGS = 3
MEASURING = "Timing single passes of both models: the simulated lane and policies that weigh costs need it"
NEAR_TIE = 1e-4  # top-2 logit gap in float32 under which rounding may decide


def never() -> bool:
    return False


def compare(request: CompareRequest, pair: Pair, cancel: Cancel = never, run_id: str | None = None) -> Told:
    """Runs ``request`` on ``pair`` and yields its events; the last is ``finished``, with the run.

    Raises UserError for bad input, Cancelled if ``cancel()`` is true.
    """
    yield from Comparison(prepare(request, pair), cancel, run_id or new_id()).events()


def finished_run(request: CompareRequest, pair: Pair, cancel: Cancel = never) -> Run:
    """Runs ``request`` and returns the run, without events. Raises UserError, Cancelled."""
    comparison = Comparison(prepare(request, pair), cancel, new_id())
    for _ in comparison.events():
        pass
    return comparison.run


def _progress(stage: str, message: str, fraction: float | None = None) -> dict[str, Any]:
    return {"stage": stage, "message": message, "fraction": fraction}


class Comparison:
    """One comparison, from a prepared request to a run.

    The untimed work comes first: the reference text (the target alone), the chains for the oracles and what-if, the
    cost curves, a warm-up of each lane. Then the lanes run round robin and are timed. Finally both models read the
    texts once more to record what decided each fate.
    """

    def __init__(self, prepared: Prepared, cancel: Cancel, run_id: str) -> None:
        self.prepared = prepared
        self._cancel = cancel
        self._run_id = run_id
        self._shared_text = prepared.request.rule != "sampling"  # every lane emits the same text
        self._reference: LaneRun | None = None
        self._chains: dict[str, Chain] = {}
        self._costs: Costs
        self._kept: list[list[LaneRun]] = [[] for _ in prepared.lanes]  # by lane, one per repeat
        self._notes: list[list[str]] = [[] for _ in prepared.lanes]
        self._sent: set[int] = set()  # token ids whose texts were sent
        self.run: Run

    def events(self) -> Told:
        """Runs the comparison; the last event is ``finished``. Raises Cancelled, UserError."""
        started = {
            "settings": asdict(self.prepared.request),
            "pair": asdict(self._pair_info()),
            "lanes": [lane.text for lane in self.prepared.lanes],
        }
        yield "started", started
        yield from self._measure()
        if self._shared_text:
            yield from self._look_ahead()
        yield from self._warm_up()
        yield from self._run_lanes()
        yield "progress", _progress("explaining", "Reading the texts once more to explain each token's fate")
        self.run = self._make_run()
        yield "finished", {"run": run_to_dict(self.run)}

    # -- off the clock, before

    def _measure(self) -> Told:
        yield "progress", _progress("measuring", MEASURING, 0.0)
        prepared, readings = self.prepared, []
        context = len(prepared.prompt) + prepared.limits.max_new_tokens // 2
        wanted = READINGS if prepared.request.repeats >= MANY_REPEATS else 1
        while len(readings) < wanted:
            rounds = cost_rounds(prepared.pair, prepared.drafts, prepared.prompt, context=context)
            readings.append(
                (yield from with_progress(rounds, lambda share: self._measured((len(readings) + share) / wanted)))
            )
            self._check_cancel()
        self._costs = readings[0] if len(readings) == 1 else smooth_costs(readings)

    def _measured(self, fraction: float) -> tuple[Kind, dict[str, Any]]:
        self._check_cancel()
        return "progress", _progress("measuring", MEASURING, fraction)

    def _look_ahead(self) -> Told:
        """The target's own text, and each draft's guesses along it."""
        yield "progress", _progress("chain", "Off the clock: the big model writes its text, for the oracle")
        prepared = self.prepared
        plain = Lane("autoregressive", None, "autoregressive", None)
        self._reference = LaneRun(prepared, plain, self._costs).run(self._cancel)
        self._check_cancel()
        for name in (draft for draft in prepared.drafts if abilities_of(draft).text_only):
            yield "progress", _progress("chain", f"Off the clock: what {name} guesses along it")
            self._chains[name] = chain_of(prepared, name, self._reference.output, self._cancel)

    def _warm_up(self) -> Told:
        found: dict[str, list[float]] = {}
        for lane in self.prepared.lanes:
            yield "progress", _progress("warming up", f"Off the clock: warming up {lane.text}")
            found.setdefault(lane.policy, []).append(measure_decision(self.prepared, lane, self._costs))
            self._check_cancel()
        self._costs = replace(self._costs, decision={policy: mean(costs) for policy, costs in found.items()})

    # -- on the clock

    def _run_lanes(self) -> Told:
        for repeat in range(self.prepared.request.repeats):
            for index, lane in enumerate(self.prepared.lanes):
                yield "lane_started", {"lane": index, "repeat": repeat}
                run = LaneRun(self.prepared, lane, self._costs, self._chain_of(lane))
                yield from self._live(index, repeat, run)
                self._check_cancel()
                self._keep(index, run)
                yield "lane_finished", {"lane": index, "repeat": repeat, "decode_s": run.decode_s}

    def _live(self, index: int, repeat: int, run: LaneRun) -> Told:
        """Decodes and yields the iterations in batches; the time in between is not counted."""
        sent, last = 0, perf_counter()
        for iteration in run.decode(self._cancel):
            if perf_counter() - last < FLUSH_S and iteration.finish is None:
                continue
            yield "iterations", self._live_data(index, repeat, sent, run.iterations[sent:])
            sent, last = len(run.iterations), perf_counter()

    def _live_data(self, index: int, repeat: int, first: int, raw: list[RawIteration]) -> dict[str, Any]:
        ids = {token for it in raw for token in (*it.drafted, *it.tokens)} - self._sent
        self._sent |= ids
        texts = {str(token): _text_pair(self.prepared.pair.tokenizer.token_text(token)) for token in sorted(ids)}
        return {
            "lane": index,
            "repeat": repeat,
            "first": first,
            "items": [live_iteration(iteration) for iteration in raw],
            "texts": texts,
        }

    def _keep(self, index: int, run: LaneRun) -> None:
        """Keeps a repeat if it has the same iterations as the first one; otherwise adds a note."""
        kept = self._kept[index]
        if kept and _shape(kept[0]) != _shape(run):
            self._notes[index].append("A repeat took other iterations than the first one and was left out.")
            return
        kept.append(run)

    def _chain_of(self, lane: Lane) -> Chain | None:
        return self._chains.get(self.prepared.draft_of(lane) or "")

    def _check_cancel(self) -> None:
        if self._cancel():
            raise Cancelled

    # -- off the clock, after

    def _make_run(self) -> Run:
        prepared = self.prepared
        n_tokens = sum(len(runs[0].output) for runs in self._kept)
        annotator = Annotator(prepared, top=5 if n_tokens <= MANY_TOKENS else 2)
        lanes = [self._make_trace(index, lane, annotator) for index, lane in enumerate(prepared.lanes)]
        return Run(
            id=self._run_id,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            machine=describe_machine(gpu_name(prepared.pair.target.info.device)),
            pair=self._pair_info(),
            settings=prepared.request,
            prompt_ids=list(prepared.prompt),
            costs=self._costs,
            chains=self._chains,
            lanes=lanes,
            vocab=_vocabulary(lanes, self._chains, prepared.pair.tokenizer.token_text),
            token_limit=prepared.limits.max_new_tokens,
        )

    def _make_trace(self, index: int, lane: Lane, annotator: Annotator) -> Trace:
        first = self._kept[index][0]
        draft = self.prepared.draft_of(lane)
        return Trace(
            lane=lane.text,
            policy=lane.policy,
            draft=draft,
            output=first.output,
            iterations=annotator.iterations(first.iterations, draft, self._chain_of(lane), lane.policy),
            repeats=[_repeat(run) for run in self._kept[index]],
            finish=first.finish,
            verdict=self._verdict(first.output),
            notes=[*self._engine_notes(draft), *self._notes[index]],
        )

    def _engine_notes(self, draft: str | None) -> list[str]:
        """Notes of the engines, for example that no CUDA graph could be recorded."""
        notes = (model.note for model in models_of(self.prepared.pair, [draft]))
        return [note[:400] for note in dict.fromkeys(notes) if note]

    def _verdict(self, output: list[int]) -> Verdict:
        if self._reference is None:
            return Verdict(same=None)
        expected = self._reference.output
        if output == expected:
            return Verdict(same=True)
        at = next(
            (i for i, pair in enumerate(zip(output, expected)) if pair[0] != pair[1]), min(len(output), len(expected))
        )
        gap = top_gap(self.prepared, expected[:at])
        exact = self.prepared.pair.target.info.dtype == "float32"
        return Verdict(same=False, first_difference=at, gap=round(gap, 6), near_tie=exact and gap < NEAR_TIE)

    def _pair_info(self) -> PairInfo:
        pair = self.prepared.pair
        drafts = {name: model_info(pair, name) for name in self.prepared.drafts}
        return PairInfo(pair.name, pair.target.info, drafts, pair.default_draft)


def chain_of(prepared: Prepared, draft: str, output: list[int], cancelled: Cancel = never) -> Chain:
    """The guesses of ``draft`` along ``output``, with the scores of all heads fitted for it."""
    heads = prepared.heads.get(draft, {})
    needs = frozenset({"p", "entropy"}).union(*(head.needs for head in heads.values())) & ALL_FEATURES
    return record_chain(
        prepared.source(draft, needs),
        prepared.prompt,
        output,
        max_new_tokens=prepared.limits.max_new_tokens,
        ends=prepared.limits.ends,
        longest=max([SL_CAP, *(int(head.tuned.get("sl_max", SL_CAP)) for head in heads.values())]),
        heads=heads,
        hidden_size=model_info(prepared.pair, draft).hidden_size,
        cancelled=cancelled,
    )


def top_gap(prepared: Prepared, output: list[int]) -> float:
    """Difference between the target's two best logits after ``output``."""
    target = prepared.pair.target
    text = [*prepared.prompt, *output]
    prefill(target, text)
    row = prepared.rule.shape(as_rows(target.extend(text[-1:]))[-1])
    second, best = np.sort(np.partition(row, -2)[-2:])
    return float(best - second)


def live_iteration(raw: RawIteration) -> dict[str, Any]:
    """An iteration for the page while the lane runs: ids, fates and times only."""
    emitted = None if raw.emitted is None else [raw.emitted, fate_of_emitted(raw)]
    return {
        "d": [[token, fate_of(raw, index)] for index, token in enumerate(raw.drafted)],
        "e": emitted,
        "start": raw.start,
        "t": list(raw.times),
    }


def _shape(run: LaneRun) -> list[tuple]:
    return [(it.start, it.drafted, it.n_accepted, it.emitted) for it in run.iterations]


def _repeat(run: LaneRun) -> Repeat:
    columns = zip(*(iteration.times for iteration in run.iterations))
    draft, check, policy, rest = ([round(max(0.0, s), 9) for s in column] for column in columns)
    return Repeat(run.prefill_s, draft, check, policy, rest)


def _text_pair(text: TokenText) -> list[str | None]:
    return ["" if text.special else text.text, text.bytes]


def _vocabulary(
    lanes: list[Trace], chains: dict[str, Chain], token_text: Callable[[int], TokenText]
) -> dict[int, TokenText]:
    """The text of every token id in the run."""
    ids: set[int] = set()
    for trace in lanes:
        for iteration in trace.iterations:
            for token in [*iteration.drafted, *([iteration.emitted] if iteration.emitted else [])]:
                choices = (token.draft_choice, token.target_choice)
                ids |= {token.id, *(choice for choice in choices if choice is not None)}
                ids |= {other for other, _ in (*token.draft_top, *token.target_top)}
    for chain in chains.values():
        for guesses in (chain.along, *chain.tails.values()):
            ids |= {choice for choice in guesses.choice if choice is not None}
        ids |= set(chain.target)
    return {token: token_text(token) for token in sorted(ids)}
