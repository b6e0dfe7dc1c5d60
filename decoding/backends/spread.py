"""An evaluation over the replicas of a backend: each takes some prompts; all lanes of a prompt stay on one device.

The costs are measured first, by one replica. Then the prompts' texts and chains are collected, and finally the clock
runs. The replicas' results are kept in the evaluation's folder, in the same files as for an evaluation on one machine,
and a replica computes the tables from them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from ..errors import Cancelled, UserError
from ..evaluation.options import EvaluationOptions
from ..evaluation.parts import CHAINS, CLOCK, COSTS, PLAN, TABLES, Files, Part, PartResult
from ..evaluation.results import EvaluationResult, Progress, result_from_dict
from ..files import Lines, read_lines
from .base import Backend
from .jobs import PART

TEXTS = "texts.jsonl"
MOST_PROMPTS = 8  # per part: bounds the work that is lost with a replica, and how unevenly the work can end
PARTS_EACH = 4  # parts per replica, at least
MIXED = "The replicas run on different machines ({}), whose times cannot be compared: evaluate on replicas of one kind."
Steps = Iterator[Progress]


def evaluate_spread(
    backend: Backend,
    replicas: Callable[[], int],
    options: EvaluationOptions,
    folder: Path,
    cancel: threading.Event,
) -> Iterator[Progress | EvaluationResult]:
    """Runs the evaluation of ``options`` on the replicas behind ``backend``; the last item is the result.

    ``replicas()``: their current number, which is also the number of concurrent parts. ``folder`` keeps what was
    collected, and the same evaluation resumes from there. Setting ``cancel`` ends it without a result.

    Raises UserError if a replica does, and for replicas on different machines.
    """
    spread = _Spread(backend, replicas, options, folder, cancel)
    with closing(spread), suppress(Cancelled):
        yield from spread.run()


@dataclass(slots=True)
class _Devices:
    """The participating machines. Raises UserError for a machine unlike the first."""

    machine: dict[str, Any] = field(default_factory=dict)
    names: dict[str, set[str]] = field(default_factory=dict)  # host -> its devices

    def add(self, one: PartResult) -> None:
        self.machine = self.machine or one.machine
        if _kind(one.machine) != _kind(self.machine):
            raise UserError(MIXED.format("; ".join(_describe(machine) for machine in (self.machine, one.machine))))
        self.names.setdefault(one.host, set()).add(one.device)

    def note(self) -> str:
        hosts = ", ".join(f"{host} ({len(devices)})" for host, devices in sorted(self.names.items()))
        shared = not self.machine["gpu"] and any(len(devices) > 1 for devices in self.names.values())
        return f"Spread over replicas on these machines, all of one kind: {hosts}." + (
            " Replicas on one machine shared its processor and slowed each other." if shared else ""
        )


@dataclass(slots=True)
class _Spread:
    """The stages of one evaluation, and the files that they fill."""

    backend: Backend
    replicas: Callable[[], int]
    options: EvaluationOptions
    folder: Path
    cancel: threading.Event
    files: dict[str, Lines] = field(default_factory=dict)
    devices: _Devices = field(default_factory=_Devices)

    def run(self) -> Iterator[Progress | EvaluationResult]:
        yield Progress(COSTS, "Measuring the costs on one replica", 0.0)
        # The replica checks whether what is in the folder is of this evaluation.
        measured = {path.name: read_lines(path) for path in self.folder.glob("costs*.jsonl")}
        first = self._alone(Part(COSTS, files=measured))
        yield from self._collect(first)
        yield Progress(CLOCK, "Tuning policies on the validation prompts", 0.0)
        plan = self._alone(Part(PLAN, files=self._kept()))
        yield from self._clock(plan)
        yield Progress(TABLES, "Computing the tables", 0.0)
        tables = self._alone(Part(TABLES, files=self._kept()))
        result = result_from_dict(tables.result or {})
        result.setting.notes.append(self.devices.note())
        yield result

    def close(self) -> None:
        for lines in self.files.values():
            lines.close()

    # -- stages

    def _collect(self, first: PartResult) -> Steps:
        """Texts and chains of both splits; of ``chain_minutes`` a third is for validation."""
        minutes = self.options.chain_minutes
        for label, ids, share in (("Validation", first.validation, 1 / 3), ("Test", first.test, 2 / 3)):
            done = self._with_chains()
            missing = [one for one in ids if one not in done]
            parts = [Part(CHAINS, some, self._kept(some)) for some in self._divide(missing)]
            yield from self._share(parts, f"{label}: texts and chains", minutes and minutes * share)

    def _clock(self, plan: PartResult) -> Steps:
        """Times all lanes of every prompt, a prompt and its repeats always on one device."""
        timed = {
            (one["prompt"], one["repeat"])
            for name, lines in self.files.items()
            if name.startswith("clock")
            for one in lines.records
        }
        repeats = range(self.options.repeats)
        missing = [one for one in plan.clocked if any((one, repeat) not in timed for repeat in repeats)]
        parts = [Part(CLOCK, some, self._kept(some), plan.lanes) for some in self._divide(missing)]
        yield from self._share(parts, "On the clock", self.options.minutes)

    def _divide(self, ids: Sequence[str]) -> list[list[str]]:
        """``ids`` in parts of equal size, such that every replica gets several."""
        size = max(1, min(MOST_PROMPTS, len(ids) // (PARTS_EACH * max(1, self.replicas()))))
        return [list(ids[start : start + size]) for start in range(0, len(ids), size)]

    # -- parts

    def _share(self, parts: Sequence[Part], label: str, minutes: float | None) -> Steps:
        """Distributes ``parts``, as many at a time as there are replicas, until ``minutes`` are over."""
        end = None if minutes is None else monotonic() + 60 * minutes
        waiting, done = list(parts), 0
        running: set[Future[PartResult]] = set()
        stop = threading.Event()  # of the parts under way: the whole was cancelled, or one of them failed
        with ThreadPoolExecutor(max(1, len(parts)), thread_name_prefix="part") as pool:
            try:
                while waiting or running:
                    if self.cancel.is_set():
                        raise Cancelled
                    if end is not None and monotonic() >= end and done + len(running) > 0:
                        waiting.clear()
                    while waiting and len(running) < max(1, self.replicas()):
                        part = waiting.pop(0)
                        part.minutes = end and max(0.0, (end - monotonic()) / 60)
                        running.add(pool.submit(self._ask, part, stop))
                    yield Progress(parts[0].stage, f"{label}: part {done + 1} of {len(parts)}", done / len(parts))
                    ended, running = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
                    for future in ended:
                        self._keep(future.result())
                        done += 1
            finally:
                stop.set()

    def _alone(self, part: Part) -> PartResult:
        """Runs ``part`` while nothing else runs."""
        result = self._ask(part, self.cancel)
        self._keep(result)
        return result

    def _ask(self, part: Part, cancel: threading.Event) -> PartResult:
        """Has a replica run ``part``. Raises UserError, Cancelled."""
        job = {"evaluation": asdict(self.options), "part": asdict(part)}
        *_, last = self.backend.run_job(PART, job, cancel)
        if last.kind == "cancelled":
            raise Cancelled
        if last.kind == "failed":
            raise UserError(last.data["message"])
        return PartResult(**last.data["result"])

    # -- files

    def _keep(self, one: PartResult) -> None:
        """Add a replica's results to the folder's files. Raises UserError if they do not belong there."""
        self.devices.add(one)
        for name, (key, *records) in one.files.items():
            if name not in self.files:
                stale = "refuse" if name == TEXTS else "restart"
                self.files[name] = Lines(self.folder / name, key, stale)
            lines = self.files[name]
            if lines.key != key:
                raise UserError("The replicas have different engines or fitted policies: start all of them alike.")
            for record in records:
                lines.add(record)

    def _kept(self, prompts: Sequence[str] | None = None) -> Files:
        """All records, or the costs and the records of ``prompts``."""
        found: Files = {}
        for name, lines in self.files.items():
            records = lines.records
            if prompts is not None:
                records = [one for one in records if "costs" in one or one.get("prompt") in prompts]
            found[name] = [lines.key, *records]
        return found

    def _with_chains(self) -> set[str]:
        """The prompts that have a text and the chains of all drafts."""
        found = [
            {one["prompt"] for one in lines.records if "prompt" in one}
            for name, lines in self.files.items()
            if name == TEXTS or name.startswith("chain-")
        ]
        return set.intersection(*found) if found else set()


def _kind(machine: dict[str, Any]) -> dict[str, Any]:
    """What must be the same. Memory may differ a little between machines of one kind."""
    return {name: value for name, value in machine.items() if name != "memory_gb"}


def _describe(machine: dict[str, Any]) -> str:
    where = machine["gpu"] or f"{machine['processor']}, {machine['cores']} cores"
    return f"{where}, torch {machine['torch']}, Python {machine['python']}"
