"""A part of an evaluation that is spread over several devices: one stage, for some of the prompts.

The files of the evaluation's folder travel with it: what a stage needs goes to the device, what is new comes back.
Plain data; :mod:`.part_run` does the work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Files = dict[str, list[dict[str, Any]]]  # name -> records, the first of which is the file's key
COSTS, CHAINS, PLAN, CLOCK, TABLES = "costs", "chains", "plan", "clock", "tables"


@dataclass(slots=True)
class Part:
    """What one device is to do: a ``stage`` for ``prompts`` (ids), given ``files``.

    ``lanes`` and ``minutes`` are of the clock (see :meth:`.collect.Collector.clock`).
    """

    stage: str
    prompts: list[str] = field(default_factory=list)
    files: Files = field(default_factory=dict)
    lanes: list[str] = field(default_factory=list)
    minutes: float | None = None


@dataclass(slots=True)
class PartResult:
    """What a device made of its part, and where: ``device`` is the same for all parts of one process."""

    machine: dict[str, Any]  # fields of records.trace.Machine
    host: str
    device: str
    files: Files  # only records that were not given
    validation: list[str] = field(default_factory=list)  # COSTS: ids of all usable prompts
    test: list[str] = field(default_factory=list)
    lanes: list[str] = field(default_factory=list)  # PLAN: what runs on the clock
    clocked: list[str] = field(default_factory=list)
    result: dict[str, Any] | None = None  # TABLES
