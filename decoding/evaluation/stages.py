"""An evaluation in stages, in the order in which they run: costs, chains, clock, tables.

Each starts from what the evaluation's folder already contains, so a stopped evaluation continues, and parts of a stage
can run on other devices (see :mod:`.parts`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from ..comparison.prepare import abilities_of, check_draft, model_info
from ..engines.loading import machine_of
from ..engines.pair import Pair
from ..errors import Cancelled, UserError
from ..files import safe_name
from ..lookahead.fitted import need_head
from ..lookahead.lanes import parse_lane
from ..lookahead.spec import all_specs, evaluated_lanes
from ..loop.drafting import MODEL_FREE
from ..records.suites import Prompt, load_suite, suites_for
from .choices import TUNED, decides, is_tree, tuned_lanes
from .collect import Collector, Steps
from .drafts import CLOCKED_SLS, evaluate_draft, plain_on_clock
from .figures import clock_table, draft_figures, policy_figures, sweep_figures
from .options import EvaluationOptions, check_options
from .results import ALL, PLAIN, STATIC_OPT, TREE_OPT, EvaluationResult, Figure, Progress, Setting
from .samples import Sample
from .trees import tree_figures


def open_evaluation(
    options: EvaluationOptions, pair: Pair, folder: Path, cancel: Callable[[], bool] = lambda: False
) -> Evaluation:
    """The evaluation that ``options`` describe: of the policies with one draft of ``pair``, or of all its drafts.

    ``folder`` keeps what was collected, so that a stopped evaluation can continue. Once ``cancel()`` is true it ends
    without a result. All choices (static-opt, the learned policies' numbers, a draft's best SL and policy) are made on
    the validation split, on which ``fit`` tuned the learned policies, too; the figures are of the split that
    ``options`` names.

    Raises:
        UserError: options that cannot be, no usable prompt, a folder of another evaluation.
    """
    kind = DraftsEvaluation if options.drafts == "all" else PolicyEvaluation
    return kind(check_options(options), pair, folder, cancel)


def work_name(options: EvaluationOptions, pair: Pair) -> str:
    """Name of the working folder: evaluations that cannot share files get separate folders."""
    info = pair.target.info
    return f"{safe_name(pair.name)}-{info.fingerprint[:8]}-{info.engine}-{info.dtype}-{options.max_new_tokens}"


class Evaluation(ABC):
    """One evaluation of ``pair`` with ``drafts``, in ``folder``. See :func:`open_evaluation`."""

    clock_name: ClassVar[str]  # of the file with the clock's readings

    def __init__(
        self,
        options: EvaluationOptions,
        pair: Pair,
        drafts: Sequence[str],
        folder: Path,
        cancel: Callable[[], bool],
        trees: bool = False,
    ) -> None:
        self.options = options
        suite = suites_for(options.suite, pair.chat)
        test = load_suite(suite, options.split, options.limit)
        validation = load_suite(suite, "validation", options.validation_limit or options.limit)
        room = pair.target.max_length - options.max_new_tokens
        self.validation, self.test = (
            [one for one in prompts if 0 < len(pair.encode_prompt(one.prompt, picture=one.picture)) <= room]
            for prompts in (validation, test)
        )
        prompts = [*self.validation, *self.test]
        for split, usable in (("validation", self.validation), (options.split, self.test)):
            if not usable:
                of = f" of the {split} split" if prompts else ""
                raise UserError(
                    f"No prompt{of} leaves room for the new tokens in this target's context: ask for fewer tokens."
                )
        self.collector = Collector(pair, drafts, prompts, options.max_new_tokens, folder, cancel, trees)

    def run(self) -> Iterator[Progress | EvaluationResult]:
        """All stages; the last item is the result, unless the evaluation was cancelled."""
        try:
            yield from self.costs()
            yield from self.chains()
            lanes, options = self.clocked_lanes(), self.options
            yield from self.collector.clock(
                self.clocked_prompts(), lanes, options.repeats, self.clock_name, options.minutes
            )
            yield from self.tables()
        except Cancelled:
            return
        finally:
            self.collector.close()

    @abstractmethod
    def costs(self) -> Steps:
        """The cost curves and the costs of decisions."""

    def chains(self) -> Steps:
        """Texts and chains of both splits; of ``chain_minutes`` a third is for validation."""
        minutes = self.options.chain_minutes
        parts = (None, None) if minutes is None else (minutes / 3, minutes * 2 / 3)
        yield from self.collector.collect_chains(self.validation, "Validation", parts[0])
        yield from self.collector.collect_chains(self.test, self.options.split.capitalize(), parts[1])

    def clocked_prompts(self) -> list[Prompt]:
        """The test prompts that run on the clock, of those that have chains."""
        return self.collector.ready(self.test)[: self.options.clock_prompts]

    @abstractmethod
    def clocked_lanes(self) -> list[str]:
        """The lanes that run on the clock; known when the chains are."""

    @abstractmethod
    def tables(self) -> Iterator[Progress | EvaluationResult]:
        """The result, from all that was collected."""

    def readings(self) -> list[dict[str, Any]]:
        """The readings of the clock so far: {prompt, repeat, lanes: {lane: timing}}."""
        return self.collector.readings(self.clocked_lanes(), self.clock_name)

    def samples(self, prompts: Sequence[Prompt], draft: str) -> list[Sample]:
        """The chains of ``draft`` on those of ``prompts`` that have them. Raises UserError if there are none."""
        samples = self.collector.samples(self.collector.ready(prompts), draft)
        if not samples:
            raise UserError(
                f"The target wrote nothing on the {prompts[0].split} prompts: there is nothing to evaluate."
            )
        return samples

    def setting(self, draft: str, notes: Sequence[str] = ()) -> Setting:
        """The setting of the evaluation, with ``draft`` as its draft."""
        options, pair = self.options, self.collector.pair
        target, guesser = pair.target.info, model_info(pair, draft)
        return Setting(
            pair=pair.name,
            draft=draft,
            target=target.source,
            target_fingerprint=target.fingerprint,
            draft_fingerprint=guesser.fingerprint,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            machine=machine_of(target.device),
            target_dtype=target.dtype,
            draft_dtype=guesser.dtype,
            threads=target.threads,
            split=options.split,
            max_new_tokens=options.max_new_tokens,
            prompts=dict(Counter(sample.suite for sample in self.samples(self.test, draft))),
            validation_prompts=len(self.collector.ready(self.validation)),
            clock_repeats=options.repeats,
            costs=self.collector.costs,
            engine=target.engine,
            notes=list(notes),
        )


class PolicyEvaluation(Evaluation):
    """The policies with one draft: the papers' tables."""

    clock_name = "clock"

    def __init__(self, options: EvaluationOptions, pair: Pair, folder: Path, cancel: Callable[[], bool]) -> None:
        self._draft = (not options.target and options.draft) or pair.default_draft
        pair = copy(pair)  # others use the pair itself
        pair.default_draft = self._draft  # the lanes on the clock name none
        fault = fault_of_trees(pair, self._draft)
        self._trees = not fault and any(map(is_tree, options.lanes))
        super().__init__(options, pair, [self._draft], folder, cancel, self._trees)
        self._heads, self._notes = self.collector.heads(self._draft), list[str]()
        self._asked = list(dict.fromkeys([PLAIN, *self._usable_lanes(fault)]))

    def _usable_lanes(self, fault_of_trees: str) -> Iterator[str]:
        """The lanes that can run with this draft and what was fitted for it; the notes say why others cannot."""
        for text in self.options.lanes:
            try:
                if fault_of_trees and is_tree(text):
                    raise UserError(fault_of_trees)
                if text not in TUNED:  # which are no lanes yet
                    lane = parse_lane(text)
                    check_draft(self.collector.pair, self._draft, lane)
                    if lane.is_learned:
                        need_head(lane.policy, self._heads)
                yield text
            except UserError as error:
                self._notes.append(f"{text} was left out. {error}")

    def costs(self) -> Steps:
        lanes = [TUNED[lane][-1] if lane in TUNED else lane for lane in self._asked if lane != STATIC_OPT]
        yield from self.collector.measure(list(dict.fromkeys(lanes)), "costs")

    def clocked_lanes(self) -> list[str]:
        """Each once, since static-opt may be static:5, and without oracle:best, which hardly differs from the oracle
        while a draft step costs little.
        """
        lanes = list(dict.fromkeys(self._lanes.values()))
        return [lane for lane in lanes if lane != "oracle:best" or "oracle" not in lanes]

    @cached_property
    def _lanes(self) -> dict[str, str]:
        """The labels of the tables and the lanes behind them, whose numbers validation chooses."""
        validation = self.samples(self.validation, self._draft)
        return tuned_lanes([*self._asked, STATIC_OPT], validation, self.collector.costs, self._heads)

    def tables(self) -> Iterator[Progress | EvaluationResult]:
        yield Progress("tables", "Tuning policies on the validation prompts", 0.0)
        lanes = self._lanes
        yield Progress("tables", "Computing the tables", 0.5)
        samples, readings = self.samples(self.test, self._draft), self.readings()
        costs, heads = self.collector.costs, self._heads
        figures = policy_figures(lanes, samples, costs, heads, clock_table(readings, samples))
        figures += draft_figures(samples)
        figures += sweep_figures(self._swept_lanes(), samples, costs, heads)
        if self._trees:
            figures += tree_figures(lanes, self.samples(self.validation, self._draft), samples, costs, heads)
        same = [lane["same"] for reading in readings for lane in reading["lanes"].values()]
        if same:
            figures.append(Figure(self._draft, "", ALL, "clock_texts_equal", float(sum(same)), n=len(same)))
        yield EvaluationResult(self.setting(self._draft, self._notes), figures, lanes)

    def _swept_lanes(self) -> Iterator[str]:
        """The lanes at all arguments that are swept, of the policies that can run here."""
        certain = abilities_of(self.collector.pair, self._draft).certain
        for name, spec in all_specs().items():
            able = name in self._heads if spec.learned else not (certain and spec.looks_at_guesses)
            if able and spec.argument is not None:
                yield from (f"{name}:{value:g}" for value in spec.argument.sweep)
        if self._trees:
            yield from TUNED[TREE_OPT]


class DraftsEvaluation(Evaluation):
    """All drafts of a pair, and those that need no model."""

    clock_name = "clock-drafts"

    def __init__(self, options: EvaluationOptions, pair: Pair, folder: Path, cancel: Callable[[], bool]) -> None:
        made_for = {name: kind.purpose for name, kind in pair.draft_kinds.items()}
        drafts = [name for name in (*pair.draft_names, *MODEL_FREE) if made_for.get(name, "") in ("", options.suite)]
        super().__init__(options, pair, drafts, folder, cancel)

    def costs(self) -> Steps:
        decided = [lane for lane in evaluated_lanes() if decides(parse_lane(lane).spec)]
        lanes = [*decided, *self.collector.heads(self.collector.pair.default_draft)]
        yield from self.collector.measure(lanes, "costs-drafts")

    def clocked_lanes(self) -> list[str]:
        return [PLAIN, *(f"{draft}/static:{sl}" for draft in self.collector.drafts for sl in CLOCKED_SLS)]

    def tables(self) -> Iterator[Progress | EvaluationResult]:
        collector, readings = self.collector, self.readings()
        for prompts in (self.validation, self.test):
            self.samples(prompts, collector.pair.default_draft)  # there are some
        validation, test = collector.ready(self.validation), collector.ready(self.test)
        drafts, figures = [], plain_on_clock(readings, collector.costs)
        for number, name in enumerate(collector.drafts):
            yield Progress("tables", f"Computing the tables of {name}", number / len(collector.drafts))
            draft, found = evaluate_draft(collector, name, validation, test, readings)
            drafts.append(draft)
            figures += found
        drafts.sort(key=lambda draft: collector.costs.draft_step[draft.name])
        yield EvaluationResult(self.setting(collector.pair.default_draft), figures, drafts=drafts)


def fault_of_trees(pair: Pair, draft: str) -> str:
    """Why ``draft`` cannot guess trees for the target; "" if it can."""
    if abilities_of(pair, draft).certain:
        return f"The draft {draft} guesses one token for each place."
    able = pair.target.can_branch and pair.draft(draft).can_branch
    return "" if able else "These models cannot read trees."
