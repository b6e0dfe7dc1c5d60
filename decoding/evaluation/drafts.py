"""The drafts report: every draft of a pair with every static SL and with its best policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis import theory
from ..comparison.prepare import abilities_of, model_info
from ..errors import UserError
from ..lookahead.base import SL_CAP
from ..lookahead.lanes import parse_lane
from ..lookahead.spec import PolicySpec
from ..lookahead.specs import all_specs, evaluated_lanes, learned_policies
from ..loop.drafting import MODEL_FREE
from ..records.suites import Prompt
from ..records.trace import Costs
from .advice import recommend
from .collect import Collector
from .options import EvaluationOptions, check_options
from .places import advise
from .progress import Progress
from .results import ALL, Clocked, DraftResult, DraftsResult, Interval, SlPoint
from .samples import Replayed, Sample, best_of, replay_lane, static_lanes
from .setting import describe_setting
from .stages import Evaluation, RawEvents
from .statistics import Bootstrap
from .tables import groups, match_rates

if TYPE_CHECKING:
    from ..engines.pair import Pair

CLOCKED_SLS = (1, 2, 3, 5, 8, 12, 20)


def evaluate_drafts(
    options: EvaluationOptions, pair: Pair, folder: Path, cancel: Callable[[], bool] = lambda: False
) -> Iterator[Progress | DraftsResult]:
    """Evaluates all drafts of ``pair`` and prompt lookup; the last item is the result.

    As :func:`decoding.evaluation.policies.evaluate`: validation picks each draft's best SL and policy, the test split
    reports; it resumes from the data in ``folder``. Raises UserError.
    """
    yield from DraftsEvaluation(options, pair, folder, cancel).run()


class DraftsEvaluation(Evaluation[DraftsResult]):
    """The stages of :func:`evaluate_drafts`."""

    clock_name = "clock-drafts"

    def __init__(
        self, options: EvaluationOptions, pair: Pair, folder: Path, cancel: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(
            check_options(options),
            pair,
            [name for name in (*pair.draft_names, *MODEL_FREE) if abilities_of(pair, name).text_only],
            folder,
            cancel,
        )

    def costs(self) -> RawEvents:
        decided = [lane for lane in evaluated_lanes() if _decides(parse_lane(lane).spec)]
        lanes = [*decided, *_learned(self.collector, self.collector.pair.default_draft)]
        yield from self.collector.measure(lanes, "costs-drafts")

    def clocked_lanes(self) -> list[str]:
        return ["autoregressive", *(f"{draft}/static:{sl}" for draft in self.collector.drafts for sl in CLOCKED_SLS)]

    def tables(self) -> Iterator[Progress | DraftsResult]:
        collector = self.collector
        validation, test = collector.ready(self.validation), collector.ready(self.test)
        readings = collector.readings(self.clocked_lanes(), self.clock_name)
        found = []
        for number, draft in enumerate(collector.drafts):
            yield Progress("tables", f"Computing the tables of {draft}", number / len(collector.drafts))
            found.append(_draft_result(collector, draft, validation, test, readings))
        default = collector.pair.default_draft
        samples = collector.samples(test, default)
        if not samples:
            raise UserError("The target wrote nothing on these prompts: there is nothing to evaluate.")
        found.sort(key=lambda one: one.c)
        result = DraftsResult(
            setting=describe_setting(self.options, collector, default, samples, len(validation), []),
            drafts=found,
            recommendation=recommend(found, collector.pair.target.info.source, collector.costs),
            plain_clock=plain_on_clock(readings, collector.costs),
        )
        yield replace(result, recommendation=advise(result, anywhere=True))


def _learned(collector: Collector, draft: str) -> list[str]:
    return [policy for policy in learned_policies() if policy in collector.heads(draft)]


def _decides(spec: PolicySpec) -> bool:
    """Whether the policy needs no fitting and chooses the SL itself."""
    return spec.adapts and not spec.learned


def candidates(draft: str, learned: Sequence[str], certain: bool = False) -> list[str]:
    """The candidates for a draft's best policy on validation, each with every other argument of its sweep.

    ``certain``: the draft's proposals have probability 1, and no policy can decide by them.
    """
    lanes = static_lanes(draft)
    for name, spec in all_specs().items():
        if not _decides(spec) or (certain and spec.looks_at_guesses):
            continue
        sweep = spec.argument.sweep[1::2] if spec.argument is not None else ()
        lanes += [f"{draft}/{name}:{value:g}" for value in sweep] or [f"{draft}/{name}"]
    return lanes if draft in MODEL_FREE else lanes + [f"{draft}/{policy}" for policy in learned]


def _draft_result(
    collector: Collector,
    draft: str,
    validation: Sequence[Prompt],
    test: Sequence[Prompt],
    readings: Sequence[dict[str, Any]],
) -> DraftResult:
    costs, heads = collector.costs, collector.heads(draft)
    tuning, samples = collector.samples(validation, draft), collector.samples(test, draft)
    best_static = best_of(static_lanes(draft), tuning, costs)
    certain = abilities_of(collector.pair, draft).certain
    best_lane = best_of(candidates(draft, _learned(collector, draft), certain), tuning, costs, heads)
    rates = match_rates(samples)
    info = model_info(collector.pair, draft)
    sweep = [replay_lane(lane, samples, costs) for lane in static_lanes(draft)]
    best = replay_lane(best_lane, samples, costs, heads)
    return DraftResult(
        name=draft,
        source=info.source,
        parameters=info.parameters,
        layers=info.layers,
        hidden_size=info.hidden_size,
        dtype=info.dtype,
        c=costs.c[draft],
        match_rate=rates,
        best_sl=int(best_static.rpartition(":")[2]),
        best_lane=best_lane,
        static_speedup=speedups_by_suite(sweep[int(best_static.rpartition(":")[2]) - 1], samples),
        speedup=speedups_by_suite(best, samples),
        p95_token_s=float(np.percentile(best.cost / best.tokens, 95) * costs.target_s),
        break_even_c=break_even_c(sweep, costs, draft),
        by_sl=sl_points(draft, sweep, rates[ALL], costs, clocked_sls(draft, sweep, samples, readings)),
        by_suite=_by_suite(sweep, samples),
        fingerprint=info.fingerprint,
    )


def speedups_by_suite(replayed: Replayed, samples: Sequence[Sample]) -> dict[str, Interval]:
    """Suite (and ALL) -> the simulated speedup on its prompts, with a 95% interval over prompts."""
    found = {}
    for suite, indices in groups([sample.suite for sample in samples]).items():
        part = replayed.pick(indices)
        found[suite] = Bootstrap(len(indices)).ratio(part.plain, part.cost)
    return found


def _by_suite(sweep: Sequence[Replayed], samples: Sequence[Sample]) -> dict[str, list[float]]:
    parts = groups([sample.suite for sample in samples])
    return {suite: [one.pick(indices).speedup for one in sweep] for suite, indices in parts.items()}


def sl_points(
    draft: str, sweep: Sequence[Replayed], match: float, costs: Costs, clocked: Mapping[int, Clocked]
) -> list[SlPoint]:
    """Simulated, predicted and measured speedup of SL 1, 2, ...

    The prediction is the throughput model's, if every guess holds independently with the match rate: ``(1 - m^(n+1)) /
    (1 - m) (v(1) + o) / (first + n c + v(n+1) + o)``.
    """

    def checking(n: int) -> float:  # the first draft step's extra cost arises once per iteration, like the check
        return costs.check(n) + costs.start(n - 1, draft)

    return [
        SlPoint(
            sl=sl,
            simulated=replayed.speedup,
            predicted=theory.speedup(match, sl, costs.c[draft], checking, costs.o),
            clock=clocked[sl].speedup.value if sl in clocked else None,
            clocked=clocked.get(sl),
        )
        for sl, replayed in enumerate(sweep, start=1)
    ]


def clocked_sls(
    draft: str, sweep: Sequence[Replayed], samples: Sequence[Sample], readings: Sequence[dict[str, Any]]
) -> dict[int, Clocked]:
    """SL -> its measured speedup, and the simulated one on the same prompts."""
    place = {sample.prompt: index for index, sample in enumerate(samples)}
    used = [reading for reading in readings if reading["prompt"] in place]
    prompts = list(dict.fromkeys(reading["prompt"] for reading in used))
    found = {}
    for sl, replayed in enumerate(sweep, start=1):
        lane = f"{draft}/static:{sl}"
        if prompts and all(lane in reading["lanes"] for reading in used):
            spent, plain = (seconds_on(name, prompts, used) for name in (lane, "autoregressive"))
            speedup = Bootstrap(len(prompts)).ratio(plain, spent)
            found[sl] = Clocked(len(prompts), speedup, replayed.pick([place[one] for one in prompts]).speedup)
    return found


def seconds_on(lane: str, prompts: Sequence[str], readings: Sequence[dict[str, Any]]) -> np.ndarray:
    """Decode seconds of ``lane`` on each prompt, summed over its repeats; shape (prompts,)."""
    totals = dict.fromkeys(prompts, 0.0)
    for reading in readings:
        totals[reading["prompt"]] += reading["lanes"][lane]["decode_s"]
    return np.array(list(totals.values()))


def plain_on_clock(readings: Sequence[dict[str, Any]], costs: Costs) -> float | None:
    """What plain decoding took on the clock over what its cost curve says, ``tokens (v(1) + o)``; None if never timed.

    Every speedup has plain decoding's time in it, so where this is not 1, all points on the clock differ from the
    simulated ones by that factor, whatever their draft and SL.
    """
    runs = [reading["lanes"]["autoregressive"] for reading in readings]
    expected = sum(run["tokens"] for run in runs) * (costs.check(1) + costs.o) * costs.target_s
    return sum(run["decode_s"] for run in runs) / expected if expected else None


def break_even_c(sweep: Sequence[Replayed], costs: Costs, draft: str) -> float:
    """The draft cost at which the best static SL gains nothing: the largest over SLs n of

        ``(tokens (v(1) + o) - sum over iterations of (v(n'+1) + o)) / (drafted tokens + first / c iterations)``

    with n' the SL of each iteration; 0 if even a free draft gains nothing.
    """
    return max(0.0, *(_break_even(replayed, costs, draft) for replayed in sweep[:SL_CAP]))


def _break_even(replayed: Replayed, costs: Costs, draft: str) -> float:
    lengths = [n for one in replayed.simulated for _, n, _ in one.iterations]
    checks = sum(costs.check(n + 1) + costs.o for n in lengths)
    c = costs.c[draft]
    drafted = sum(n + (costs.start(n, draft) / c if c else 0.0) for n in lengths)  # first steps cost more
    return (float(replayed.plain.sum()) - checks) / drafted if drafted else 0.0
