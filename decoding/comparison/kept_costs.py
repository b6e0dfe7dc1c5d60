"""Cost curves from earlier measurements, kept per pair, engine and machine, so that runs need not wait for them; and
what they choose for the policies. Both are measured and chosen in idle time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from ..analysis.tuning import Chosen, choose
from ..analysis.validation import FILE as VALIDATION
from ..analysis.validation import policies_digest, read_validation
from ..engines.kept_trials import MAX_AGE, age_of, keep, now, read_kept, try_again
from ..engines.loading import machine_of
from ..engines.pair import Pair
from ..engines.threads import DRAFT_ROWS, TARGET_ROWS
from ..errors import Cancelled, UserError
from ..files import costs_folder, digest_of
from ..records.request import DEFAULT_LANES, CompareRequest
from ..records.trace import Costs, Machine, ModelInfo
from .costs import measure_costs, measure_decision, warm_up
from .prepare import POLICIES_FOLDER as POLICIES
from .prepare import load_heads_of, model_info, prepare

log = logging.getLogger(__name__)

CONTEXTS = tuple(2**n for n in range(6, 18))  # tokens; costs in between are similar
TYPICAL = 128  # tokens of context: a question and half of its answer
DOUBTFUL = 0.1  # readings that contradict each other by more
Busy = Callable[[], bool]
TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind. "
USUAL = CompareRequest(TEXT, lanes=list(DEFAULT_LANES))  # as the run that the page opens with


@dataclass(slots=True)
class Setting:
    """What the curves depend on: both models as they run, the machine, and how long the text is."""

    target: ModelInfo
    draft: ModelInfo | None
    machine: Machine
    context: int


@dataclass(slots=True)
class Kept:
    """One file: the curves with one draft, and what they chose for its policies."""

    setting: Setting
    costs: Costs
    chosen: Chosen | None = None


_ADAPTER = TypeAdapter(Kept)


def _each(drafts: Sequence[str]) -> Sequence[str | None]:
    """The drafts of one comparison; None stands for the curves of the target alone."""
    return drafts or [None]


@dataclass(slots=True)
class KnownCosts:
    """What one process knows of a loaded pair: its kept curves, the lanes that have run here, what to measure next.

    Curves are kept in files of ``folder``, one for each setting. A file that cannot be written is measured again.
    """

    pair: Pair
    folder: Path = field(default_factory=costs_folder)
    warm: set[str] = field(default_factory=set)  # lanes that have run in this process
    tasks: list[tuple[str | None, int]] = field(default_factory=list)  # curves to measure: of a draft, at a context
    sets_lanes: bool = True  # False: policies run as they were fitted
    given: Costs | None = None  # those of a run that is repeated, instead of this machine's
    unusable: set[str] = field(default_factory=set)  # drafts without sound validation chains
    misfits: bool = False  # passes took another time than the curves say: the numbers of threads are tried again, too

    def find(self, drafts: Sequence[str], context: int) -> Costs | None:
        """The curves with all of ``drafts``, at ``context`` or the nearest one known; None where one draft has none.

        Curves from another context, from too long ago or from a busy machine are used, but measured again later.
        """
        costs = []
        for draft in _each(drafts):
            found = next(self._near(draft, bucket(context)), None)
            if found is None:
                return None
            if (
                found.setting.context != bucket(context)
                or age_of(found.costs.measured) > MAX_AGE
                or found.costs.contradiction > DOUBTFUL
            ):
                self.ask_for(draft, context)
            costs.append(found.costs)
        return joined(costs)

    def keep(self, drafts: Sequence[str], context: int, costs: Costs) -> None:
        """Keep ``costs`` as measured now, by draft."""
        date = now()
        for draft in _each(drafts):
            own = replace(
                costs,
                draft_step=_only(costs.draft_step, draft),
                first_step=_only(costs.first_step, draft),
                measured=date,
            )
            setting = self._setting(draft, context)
            before = self._read(setting)  # what older curves chose serves until these have chosen
            self._write(Kept(setting, own, before.chosen if before else None))
            self.tasks = [task for task in self.tasks if task != (draft, bucket(context))]

    def add_decisions(self, drafts: Sequence[str], context: int, decision: dict[str, float]) -> None:
        """Keep the cost of decisions with the curves; the curves keep their date."""
        for draft in _each(drafts):
            kept = self._read(self._setting(draft, context))
            if kept is not None:
                costs = replace(kept.costs, decision={**kept.costs.decision, **decision})
                self._write(replace(kept, costs=costs))

    # -- what the curves choose

    def typical(self, draft: str) -> Kept | None:
        """What is kept with ``draft`` at the context nearest to TYPICAL tokens."""
        return next(self._near(draft, TYPICAL), None)

    def chosen(self, draft: str) -> Chosen | None:
        """What this machine's curves chose for the policies of ``draft`` as they are now; None if nothing yet.

        It is one choice for texts of all lengths, by the curves nearest to TYPICAL tokens.
        """
        source = self._source(draft)
        found = (kept.chosen for kept in self._near(draft, TYPICAL)) if source and self.sets_lanes else iter(())
        return next((one for one in found if one is not None and one.source == source), None)

    def is_unset(self, draft: str) -> bool:
        """Whether the typical curves can choose for the policies of ``draft`` and have not."""
        source, kept = self._source(draft), self.typical(draft)
        if not source or kept is None or draft in self.unusable:
            return False
        chosen = kept.chosen
        return chosen is None or (chosen.source, chosen.measured) != (source, kept.costs.measured)

    def choose(self, draft: str, stopped: Callable[[], bool] = lambda: False) -> None:
        """Choose for the policies of ``draft`` by replay of its validation chains, unless ``stopped()``, and keep that
        with the curves.
        """
        kept, folder = self.typical(draft), self._policies(draft)
        if kept is None or folder is None:
            return
        target, own = self.pair.target.info, self.pair.draft(draft).info
        try:
            recorded = read_validation(folder, draft, target.fingerprint, own.fingerprint)
        except UserError as error:
            log.warning("nothing is chosen for this machine: %s", error)
            recorded = []
        if not recorded:
            self.unusable.add(draft)
            return
        chosen = choose(recorded, load_heads_of(self.pair, draft), kept.costs, stopped)
        if chosen is not None:
            self._write(replace(kept, chosen=replace(chosen, source=self._source(draft))))

    def _near(self, draft: str | None, context: int) -> Iterator[Kept]:
        """What is kept with ``draft``, at the contexts nearest to ``context`` first."""
        kept = (self._read(self._setting(draft, near)) for near in _by_nearness(context))
        return (one for one in kept if one is not None)

    def _policies(self, draft: str) -> Path | None:
        folder = self.pair.draft_folders.get(draft)
        return None if folder is None else folder / POLICIES

    def _source(self, draft: str) -> str:
        """The digest of the draft's policies and chains; "" if there are no chains."""
        folder = self._policies(draft)
        return policies_digest(folder) if folder is not None and (folder / VALIDATION).is_file() else ""

    # -- what to measure

    def ask_for(self, draft: str | None, context: int) -> None:
        """Have these curves measured again in idle time."""
        if (task := (draft, bucket(context))) not in self.tasks:
            self.tasks.append(task)

    def misfit(self, drafts: Sequence[str], context: int) -> None:
        """A few passes did not agree with these curves: have threads and curves measured again."""
        self.misfits = True
        for draft in drafts:
            self.ask_for(draft, context)

    def try_threads_again(self) -> None:
        """Try the numbers of threads of all loaded models again, if curves did not fit. Empties their caches."""
        if self.misfits:
            self.misfits = False
            try_again(self.pair.target, TARGET_ROWS)
            for draft in self.pair.loaded_drafts.values():
                try_again(draft, DRAFT_ROWS)

    # -- the files

    def _read(self, setting: Setting) -> Kept | None:
        """What is kept for ``setting``; None if nothing is, or nothing sound."""
        kept = read_kept(_ADAPTER, self._path(setting))
        return kept if kept is not None and kept.setting == setting else None

    def _write(self, kept: Kept) -> None:
        keep(_ADAPTER, self._path(kept.setting), kept)

    def _path(self, setting: Setting) -> Path:
        return self.folder / f"{digest_of(repr(setting).encode())}.json"

    def _setting(self, draft: str | None, context: int) -> Setting:
        target = self.pair.target.info
        info = None if draft is None else model_info(self.pair, draft)
        return Setting(target, info, machine_of(target.device), bucket(context))


def _by_nearness(context: int) -> list[int]:
    """CONTEXTS, the ones nearest to ``context`` by ratio first."""
    return sorted(CONTEXTS, key=lambda one: abs(math.log(one / context)))


def bucket(context: int) -> int:
    """The one of CONTEXTS that is nearest to ``context`` by ratio."""
    return _by_nearness(max(1, context))[0]


def joined(costs: Sequence[Costs]) -> Costs:
    """The curves of several drafts in one: v and o are those with the first, as they are measured."""
    first = costs[0]
    return replace(
        first,
        draft_step={name: c for one in costs for name, c in one.draft_step.items()},
        first_step={name: f for one in costs for name, f in one.first_step.items()},
        decision={policy: d for one in reversed(costs) for policy, d in one.decision.items()},
        measured=min((one.measured for one in costs if one.measured), default=None),
    )


def _only(by_draft: dict[str, float], draft: str | None) -> dict[str, float]:
    return {name: value for name, value in by_draft.items() if name == draft}


# -- the idle work of a process with a loaded pair


def prepare_usual(known: KnownCosts, busy: Busy) -> None:
    """Prepare for the page's default run: measure cost curves and warm up its lanes."""
    draft = known.pair.default_draft
    context = len(known.pair.encode_prompt(USUAL.prompt)) + USUAL.max_new_tokens // 2
    if known.find([draft], context) is None:
        known.ask_for(draft, context)
        measure_asked(known, busy)
    set_policies(known, busy)
    costs = known.find([draft], context)
    for text in USUAL.lanes:
        if costs is not None and not busy():
            _warm_up(known, text, context, costs)


def measure_asked(known: KnownCosts, busy: Busy) -> None:
    """Measure the requested curves and keep them; stops when ``busy()``, leaving the rest for later."""
    if not busy():
        known.try_threads_again()
    prompt = known.pair.encode_prompt(TEXT).ids
    with suppress(Cancelled):
        while known.tasks:
            draft, context = known.tasks[0]
            drafts = [draft] if draft else []
            known.keep(drafts, context, measure_costs(known.pair, drafts, prompt, context, busy))


def set_policies(known: KnownCosts, busy: Busy) -> None:
    """Choose thresholds and the best static SL for every loaded draft whose curves have not; stops when ``busy()``."""
    for draft in filter(known.is_unset, list(known.pair.loaded_drafts)):
        for policy in load_heads_of(known.pair, draft):
            kept = known.typical(draft)
            if kept is not None and policy not in kept.costs.decision and not busy():
                lane = policy if draft == known.pair.default_draft else f"{draft}/{policy}"
                _warm_up(known, lane, kept.setting.context, kept.costs)
        if not busy():
            known.choose(draft, busy)


def _warm_up(known: KnownCosts, text: str, context: int, costs: Costs) -> None:
    """Let a lane decode a few tokens, and keep the cost of its decisions. Lanes that this pair lacks are skipped."""
    try:
        prepared = prepare(replace(USUAL, lanes=[text]), known.pair, known.chosen)
    except UserError:
        return
    lane = prepared.lanes[0]
    if lane.is_plain:
        warm_up(prepared, lane, costs)
    decision = measure_decision(prepared, lane, costs)
    known.add_decisions(prepared.drafts or [known.pair.default_draft], context, {lane.policy: decision})
    known.warm.add(lane.text)
