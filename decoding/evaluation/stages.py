"""The stages of an evaluation, in the order in which they run: costs, chains, clock, tables.

Each starts from what the evaluation's folder already contains, so a stopped evaluation continues, and parts of a stage
can run on other devices (see :mod:`.parts`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from ..errors import Cancelled
from ..records.suites import Prompt, load_suite, suites_for
from .collect import Collector
from .options import EvaluationOptions
from .progress import Progress
from .results import DraftsResult, EvaluationResult

if TYPE_CHECKING:
    from ..engines.pair import Pair

RawEvents = Iterator[Progress]
R = TypeVar("R", bound=EvaluationResult | DraftsResult)


class Evaluation(ABC, Generic[R]):
    """One evaluation of ``pair`` with ``drafts``, in ``folder``, whose result is an R. ``options`` have been checked.

    Raises UserError for a suite that is missing, prompts that leave no room, a folder of another evaluation.
    """

    clock_name: ClassVar[str]  # of the file with the clock's readings

    def __init__(
        self,
        options: EvaluationOptions,
        pair: Pair,
        drafts: Sequence[str],
        folder: Path,
        cancel: Callable[[], bool],
    ) -> None:
        self.options = options
        suite = suites_for(options.suite, pair.chat)
        test = load_suite(suite, options.split, options.limit)
        validation = load_suite(suite, "validation", options.validation_limit or options.limit)
        self.collector = Collector(pair, drafts, [*validation, *test], options.max_new_tokens, folder, cancel)
        usable = {prompt.id for prompt in self.collector.prompts}
        self.validation = [prompt for prompt in validation if prompt.id in usable]
        self.test = [prompt for prompt in test if prompt.id in usable]

    def run(self) -> Iterator[Progress | R]:
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
    def costs(self) -> RawEvents:
        """The cost curves and the costs of decisions."""

    def chains(self) -> RawEvents:
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
    def tables(self) -> Iterator[Progress | R]:
        """The result, from all that was collected."""


AnyEvaluation = Evaluation[EvaluationResult] | Evaluation[DraftsResult]
