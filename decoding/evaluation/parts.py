"""A part of an evaluation that is spread over several devices: one stage, for some of the prompts.

The files of the evaluation's folder travel with it: what a stage needs goes to the device, what is new comes back.
Importing this loads no model code: a machine that only distributes parts needs none.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Cancelled, UserError
from ..files import Lines, write_whole
from ..records.run_file import to_plain
from .results import Progress

if TYPE_CHECKING:
    from ..engines.pair import Pair
    from .options import EvaluationOptions
    from .stages import Evaluation

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


def run_part(
    options: EvaluationOptions, part: Part, pair: Pair, folder: Path, cancel: Callable[[], bool]
) -> Iterator[Progress | PartResult]:
    """Runs ``part`` in the empty ``folder``; the last item is its result, unless it was cancelled.

    Raises UserError as an evaluation does.
    """
    from ..engines.loading import machine_of
    from .stages import open_evaluation

    _check_same_target(part, pair)
    for name, records in part.files.items():
        write_whole(folder / Path(name).name, "".join(json.dumps(one) + "\n" for one in records))
    evaluation = open_evaluation(options, pair, folder, cancel)
    host = socket.gethostname()
    result = PartResult(asdict(machine_of(pair.target.info.device)), host, f"{host}:{os.getpid()}", {})
    try:
        yield from _run_stage(evaluation, part, result)
    except Cancelled:
        return
    finally:
        evaluation.collector.close()
    result.files = {lines.path.name: _new_records(lines, part.files) for lines in evaluation.collector.files.values()}
    yield result


def _check_same_target(part: Part, pair: Pair) -> None:
    """Raises UserError for files of another target. Costs with another target are measured again by the first part."""
    keys = [] if part.stage == COSTS else [records[0] for records in part.files.values()]
    if any(key["target"] != pair.target.info.fingerprint for key in keys):
        raise UserError("The replicas have different models: start them from the same folder and version.")


def _run_stage(evaluation: Evaluation, part: Part, result: PartResult) -> Iterator[Progress]:
    collector, options = evaluation.collector, evaluation.options
    known = {prompt.id: prompt for prompt in (*evaluation.validation, *evaluation.test)}
    prompts = [known[one] for one in part.prompts]
    yield from evaluation.costs()  # measured by the first part only; the others are given them
    if part.stage == COSTS:
        result.validation = [prompt.id for prompt in evaluation.validation]
        result.test = [prompt.id for prompt in evaluation.test]
        collector.ready([])  # opens the chains' files: their keys go back
    elif part.stage == CHAINS:
        yield from collector.collect_chains(prompts, "Chains", part.minutes)
    elif part.stage == PLAN:
        result.lanes = evaluation.clocked_lanes()
        result.clocked = [prompt.id for prompt in evaluation.clocked_prompts()]
        evaluation.readings()  # likewise
    elif part.stage == CLOCK:
        yield from collector.clock(prompts, part.lanes, options.repeats, evaluation.clock_name, part.minutes)
    else:
        for step in evaluation.tables():
            if isinstance(step, Progress):
                yield step
            else:
                result.result = to_plain(step)


def _new_records(lines: Lines, given: Files) -> list[dict[str, Any]]:
    """The key of a file that was used, and its records that were not given."""
    old = given.get(lines.path.name, [])
    return [lines.key, *(lines.records[len(old) - 1 :] if old[:1] == [lines.key] else lines.records)]
