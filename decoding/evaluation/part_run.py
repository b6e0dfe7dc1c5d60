"""Runs a part of an evaluation on the device to which it was given."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..engines.loading import gpu_name
from ..errors import Cancelled, UserError
from ..files import write_whole
from ..records.json_lines import read_lines
from ..records.machine import describe_machine
from ..records.suites import Prompt
from .job import open_evaluation
from .options import EvaluationOptions
from .parts import CHAINS, CLOCK, COSTS, PLAN, Files, Part, PartResult
from .progress import Progress
from .stages import AnyEvaluation

if TYPE_CHECKING:
    from ..engines.pair import Pair


def run_part(
    options: EvaluationOptions, part: Part, pair: Pair, folder: Path, cancel: Callable[[], bool]
) -> Iterator[Progress | PartResult]:
    """Runs ``part`` in the empty ``folder``; the last item is its result, unless it was cancelled.

    Raises UserError as an evaluation does.
    """
    _check_same_target(part, pair)
    for name, records in part.files.items():
        write_whole(folder / Path(name).name, "".join(json.dumps(one) + "\n" for one in records))
    evaluation = open_evaluation(options, pair, folder, cancel)
    gpu = gpu_name(pair.target.info.device)
    host = socket.gethostname()
    result = PartResult(asdict(describe_machine(gpu)), host, f"{host}:{os.getpid()}", {})
    try:
        yield from _run_stage(evaluation, part, result)
    except Cancelled:
        return
    finally:
        evaluation.collector.close()
    result.files = _new_records(folder, part.files)
    yield result


def _check_same_target(part: Part, pair: Pair) -> None:
    """Raises UserError for files of another target. Costs with another target are measured again by the first part."""
    keys = [] if part.stage == COSTS else [records[0] for records in part.files.values()]
    if any(key["target"] != pair.target.info.fingerprint for key in keys):
        raise UserError("The replicas have different models: start them from the same folder and version.")


def _run_stage(evaluation: AnyEvaluation, part: Part, result: PartResult) -> Iterator[Progress]:
    collector, options = evaluation.collector, evaluation.options
    prompts = _chosen(evaluation, part.prompts)
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
        collector.readings(result.lanes, evaluation.clock_name)  # likewise
    elif part.stage == CLOCK:
        yield from collector.clock(prompts, part.lanes, options.repeats, evaluation.clock_name, part.minutes)
    else:
        for step in evaluation.tables():
            if isinstance(step, Progress):
                yield step
            else:
                result.result = asdict(step)


def _chosen(evaluation: AnyEvaluation, ids: list[str]) -> list[Prompt]:
    known = {prompt.id: prompt for prompt in (*evaluation.validation, *evaluation.test)}
    return [known[one] for one in ids]


def _new_records(folder: Path, given: Files) -> Files:
    """The records of all files but those that were given; the key of each first."""
    found: Files = {}
    for path in sorted(folder.glob("*.jsonl")):
        key, *records = read_lines(path)
        old = given.get(path.name)
        found[path.name] = [key, *(records[len(old) - 1 :] if old and old[0] == key else records)]
    return found
