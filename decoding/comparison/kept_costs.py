"""Cost curves from earlier measurements, kept per pair, engine and machine, so that runs need not wait for them."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from ..engines.kept_trials import MAX_AGE, try_again
from ..engines.loading import gpu_name
from ..files import costs_folder, digest_of, write_whole
from ..records.machine import describe_machine
from ..records.trace import Costs, Machine, ModelInfo
from .prepare import model_info

if TYPE_CHECKING:
    from ..engines.pair import Pair

log = logging.getLogger(__name__)

CONTEXTS = tuple(2**n for n in range(6, 18))  # tokens; costs in between are similar
DOUBTFUL = 0.1  # readings that contradict each other by more


@dataclass(slots=True)
class Setting:
    """What the curves depend on: both models as they run, the machine, and how long the text is."""

    target: ModelInfo
    draft: ModelInfo | None
    machine: Machine
    context: int

    @property
    def name(self) -> str:
        return digest_of(repr(self).encode())


@dataclass(slots=True)
class Kept:
    """One file of the shelf: the curves with one draft."""

    setting: Setting
    costs: Costs


_ADAPTER = TypeAdapter(Kept)


class Shelf:
    """The files, in the program's cache folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or costs_folder()

    def read(self, setting: Setting) -> Costs | None:
        """The curves kept for ``setting``; None if there are none, or only unsound ones."""
        try:
            kept = _ADAPTER.validate_json(self._path(setting).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            log.warning("kept cost curves cannot be read and are measured again: %s", str(error)[:200])
            return None
        return kept.costs if kept.setting == setting else None

    def write(self, setting: Setting, costs: Costs) -> None:
        """Keep ``costs``. If they cannot be written, the next run measures them again."""
        try:
            write_whole(self._path(setting), _ADAPTER.dump_json(Kept(setting, costs)))
        except OSError as error:
            log.warning("cost curves could not be kept: %s", error)

    def _path(self, setting: Setting) -> Path:
        return self._folder / f"{setting.name}.json"


@dataclass(slots=True)
class Found:
    """Curves from the shelf, and the context at which they were measured."""

    context: int
    costs: Costs


@dataclass(slots=True)
class Task:
    """Curves to measure in idle time."""

    draft: str | None
    context: int


def _each(drafts: Sequence[str]) -> Sequence[str | None]:
    """The drafts of one comparison; None stands for the curves of the target alone."""
    return drafts or [None]


@dataclass(slots=True)
class KnownCosts:
    """What one process knows of a loaded pair: its kept curves, the lanes that have run here, what to measure next."""

    pair: Pair
    shelf: Shelf = field(default_factory=Shelf)
    warm: set[str] = field(default_factory=set)  # lanes that have run in this process
    tasks: list[Task] = field(default_factory=list)
    misfits: bool = False  # passes took another time than the curves say: the numbers of threads are tried again, too

    def find(self, drafts: Sequence[str], context: int) -> Costs | None:
        """The curves with all of ``drafts``, at ``context`` or the nearest one known; None where one draft has none.

        Curves from another context, from too long ago or from a busy machine are used, but measured again later.
        """
        costs = []
        for draft in _each(drafts):
            found = self._nearest(draft, context)
            if found is None:
                return None
            if found.context != bucket(context) or age_of(found.costs) > MAX_AGE or found.costs.doubt > DOUBTFUL:
                self.ask_for(draft, context)
            costs.append(found.costs)
        return joined(costs)

    def _nearest(self, draft: str | None, context: int) -> Found | None:
        for near in sorted(CONTEXTS, key=lambda one: abs(math.log(one / bucket(context)))):
            costs = self.shelf.read(self._setting(draft, near))
            if costs is not None:
                return Found(near, costs)
        return None

    def keep(self, drafts: Sequence[str], context: int, costs: Costs) -> None:
        """Keep ``costs`` as measured now, by draft."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        for draft in _each(drafts):
            own = replace(costs, c=_only(costs.c, draft), first=_only(costs.first, draft), measured=now)
            self.shelf.write(self._setting(draft, context), own)
            self.tasks = [task for task in self.tasks if task != Task(draft, bucket(context))]

    def add_decisions(self, drafts: Sequence[str], context: int, decision: dict[str, float]) -> None:
        """Keep the cost of decisions with the curves; the curves keep their date."""
        for draft in _each(drafts):
            setting = self._setting(draft, context)
            costs = self.shelf.read(setting)
            if costs is not None:
                self.shelf.write(setting, replace(costs, decision={**costs.decision, **decision}))

    def ask_for(self, draft: str | None, context: int) -> None:
        """Have these curves measured again in idle time."""
        task = Task(draft, bucket(context))
        if task not in self.tasks:
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
            for model in (self.pair.target, *self.pair.loaded_drafts.values()):
                try_again(model)

    def _setting(self, draft: str | None, context: int) -> Setting:
        target = self.pair.target.info
        machine = describe_machine(gpu_name(target.device))
        info = None if draft is None else model_info(self.pair, draft)
        return Setting(target, info, machine, bucket(context))


def bucket(context: int) -> int:
    """The one of CONTEXTS that is nearest to ``context`` by ratio."""
    return min(CONTEXTS, key=lambda one: abs(math.log(one / max(1, context))))


def age_of(costs: Costs) -> timedelta:
    """The age of ``costs``; a date that cannot be read counts as very old."""
    try:
        then = datetime.fromisoformat(costs.measured or "")
        return datetime.now(timezone.utc) - then
    except (ValueError, TypeError):
        return timedelta.max


def joined(costs: Sequence[Costs]) -> Costs:
    """The curves of several drafts in one: v and o are those with the first, as they are measured."""
    first = costs[0]
    return replace(
        first,
        c={name: c for one in costs for name, c in one.c.items()},
        first={name: f for one in costs for name, f in one.first.items()},
        decision={policy: d for one in reversed(costs) for policy, d in one.decision.items()},
        measured=min((one.measured for one in costs if one.measured), default=None),
    )


def _only(by_draft: dict[str, float], draft: str | None) -> dict[str, float]:
    return {name: value for name, value in by_draft.items() if name == draft}
