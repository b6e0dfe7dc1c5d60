"""The evaluation of the policies with one draft: the papers' tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from ..lookahead.fitted import need_head
from ..lookahead.heads import Head
from ..lookahead.lanes import parse_lane
from ..lookahead.specs import all_specs
from .classify import best_f1
from .collect import Collector
from .corrections import correct_all
from .options import EvaluationOptions, check_options
from .progress import Progress
from .results import EvaluationResult
from .samples import Sample, best_of, static_lanes
from .setting import describe_setting
from .stages import Evaluation, RawEvents
from .tables import (
    STATIC_OPT,
    ClockTable,
    Entry,
    always_accepting,
    judge_timings,
    match_rates,
    oracle_lengths,
    pareto,
    policy_results,
)

if TYPE_CHECKING:
    from ..engines.pair import Pair


def evaluate(
    options: EvaluationOptions, pair: Pair, folder: Path, cancel: Callable[[], bool] = lambda: False
) -> Iterator[Progress | EvaluationResult]:
    """Evaluate the policies of ``options`` with one draft of ``pair``; yields progress and, last, the result.

    ``folder`` keeps what was collected, so that a stopped evaluation can continue. Once ``cancel()`` is true it ends
    without a result. static-opt is chosen on the validation split, on which ``fit`` tuned the learned policies, too;
    the figures are of the split that ``options`` names.

    Raises:
        UserError: options that cannot be, no usable prompt, a folder of another evaluation.
    """
    yield from PolicyEvaluation(options, pair, folder, cancel).run()


class PolicyEvaluation(Evaluation[EvaluationResult]):
    """The stages of :func:`evaluate`."""

    clock_name = "clock"

    def __init__(
        self, options: EvaluationOptions, pair: Pair, folder: Path, cancel: Callable[[], bool] = lambda: False
    ) -> None:
        options = check_options(options)
        self._draft = options.draft_name or pair.default_draft
        super().__init__(options, pair, [self._draft], folder, cancel)
        self._lanes, self._notes = usable_lanes(options.lanes, self.collector, self._draft)

    def costs(self) -> RawEvents:
        yield from self.collector.measure([lane for lane in self._lanes if lane != STATIC_OPT], "costs")

    def clocked_lanes(self) -> list[str]:
        return _clock_lanes(name_entries(self._lanes, self._static_opt))

    @cached_property
    def _static_opt(self) -> str:
        """The static lane that validation chooses."""
        validation = self.collector.samples(self.collector.ready(self.validation), self._draft)
        return best_of(static_lanes(), validation, self.collector.costs)

    def tables(self) -> Iterator[Progress | EvaluationResult]:
        yield Progress("tables", "Tuning static-opt on the validation prompts", 0.0)
        static_opt = self._static_opt
        yield Progress("tables", "Computing the tables", 0.5)
        samples = self.collector.samples(self.collector.ready(self.test), self._draft)
        if not samples:
            raise UserError("The target wrote nothing on these prompts: there is nothing to evaluate.")
        yield _result(
            self.options,
            self.collector,
            self._draft,
            name_entries(self._lanes, static_opt),
            samples,
            len(self.collector.ready(self.validation)),
            self._notes,
            int(static_opt.split(":")[1]),
        )


def usable_lanes(asked: Sequence[str], collector: Collector, draft: str) -> tuple[list[str], list[str]]:
    """The lanes that can run with ``draft``, plain decoding among them, and notes on the others."""
    lanes, notes = ["autoregressive"], []
    for text in asked:
        lane = None if text == STATIC_OPT else parse_lane(text)
        try:
            if lane is not None and lane.is_learned:
                need_head(lane.policy, collector.heads(draft))
            lanes.append(text)
        except UserError as error:
            notes.append(f"{text} was left out. {error}")
    return list(dict.fromkeys(lanes)), notes


def name_entries(lanes: Sequence[str], static_opt: str) -> list[Entry]:
    """Labels of the tables and the lanes behind them."""
    entries = [Entry(text, static_opt if text == STATIC_OPT else text) for text in lanes]
    if all(entry.label != STATIC_OPT for entry in entries):
        entries.append(Entry(STATIC_OPT, static_opt))
    return entries


def _lanes_of(entries: Sequence[Entry]) -> list[str]:
    """The lanes behind the policies, each once: static-opt may be static:5."""
    return list(dict.fromkeys(entry.lane for entry in entries))


def _clock_lanes(entries: Sequence[Entry]) -> list[str]:
    """The lanes that run on the clock: without oracle:best, which hardly differs from the oracle while a draft
    step costs little."""
    lanes = _lanes_of(entries)
    return [lane for lane in lanes if lane != "oracle:best" or "oracle" not in lanes]


def clock_table(readings: Sequence[dict[str, Any]], samples: Sequence[Sample], lanes: Sequence[str]) -> ClockTable:
    """Median seconds over the repeats by lane and prompt."""
    suites = {sample.prompt: sample.suite for sample in samples}
    timed: dict[str, list[dict[str, Any]]] = {}
    for reading in readings:
        if reading["prompt"] in suites:
            timed.setdefault(reading["prompt"], []).append(reading["lanes"])
    prompts = list(timed)
    seconds = {
        lane: np.array([np.median([one[lane]["decode_s"] for one in timed[prompt]]) for prompt in prompts])
        for lane in lanes
    }
    tokens = np.array([timed[prompt][0]["autoregressive"]["tokens"] for prompt in prompts])
    return ClockTable(prompts, [suites[prompt] for prompt in prompts], tokens, seconds)


def _result(
    options: EvaluationOptions,
    collector: Collector,
    draft: str,
    entries: list[Entry],
    samples: list[Sample],
    validation_prompts: int,
    notes: list[str],
    static_opt: int,
) -> EvaluationResult:
    heads = collector.heads(draft)
    lanes = _clock_lanes(entries)
    readings = collector.readings(lanes, "clock")
    verdicts = [lane["same"] for reading in readings for lane in reading["lanes"].values()]
    families = _families(heads)
    return EvaluationResult(
        setting=describe_setting(options, collector, draft, samples, validation_prompts, notes),
        static_opt=static_opt,
        match_rate=match_rates(samples),
        always_accept=always_accepting(samples),
        policies=policy_results(entries, samples, collector.costs, heads, clock_table(readings, samples, lanes)),
        pareto={name: pareto(steps, samples, collector.costs, heads) for name, steps in families.items()},
        oracle=oracle_lengths(samples),
        texts_equal=(sum(verdicts), len(verdicts)),
        perfect_judge=judge_timings(entries, samples, collector.costs),
        corrections=correct_all(entries, samples, collector.costs, heads),
        best_f1=best_f1(samples),
    )


def _families(heads: Mapping[str, Head]) -> dict[str, list[str]]:
    """Policy -> its lanes at all arguments that are swept, for the policies that can run here."""
    return {
        name: [f"{name}:{value:g}" for value in spec.argument.sweep]
        for name, spec in all_specs().items()
        if spec.argument is not None and spec.argument.sweep and (not spec.learned or name in heads)
    }
