"""The evaluation as a job: options in, events of plain data out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .drafts import evaluate_drafts
from .options import EvaluationOptions
from .progress import Progress
from .results import DraftsResult, EvaluationResult
from .rules import evaluate

if TYPE_CHECKING:
    from ..models.pair import Pair

WORK = Path("build") / "evaluation"


def run_evaluation(
    options: EvaluationOptions, pair: Pair, folder: Path, cancel: Callable[[], bool]
) -> Iterator[Progress | EvaluationResult | DraftsResult]:
    """The evaluation that ``options`` ask for; it ends without a result where ``cancel()`` said so."""
    if options.drafts == "all":
        yield from evaluate_drafts(options, pair, folder, cancel)
    else:
        yield from evaluate(options, pair, folder, cancel)


def evaluation_job(
    options: EvaluationOptions, pair: Pair, cancel: Callable[[], bool], folder: Path | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same as ``(kind, data)`` pairs, for backends: progress, then finished (with the result) or cancelled."""
    folder = folder or WORK / work_name(options, pair)
    for told in run_evaluation(options, pair, folder, cancel):
        if isinstance(told, Progress):
            yield "progress", {"stage": told.stage, "message": told.message, "fraction": told.fraction}
        else:
            yield "finished", {"result": asdict(told)}
            return
    yield "cancelled", {}


def work_name(options: EvaluationOptions, pair: Pair) -> str:
    """Folder of the working files: evaluations that cannot share them get folders of their own."""
    info = pair.target.info
    safe = "".join(char if char.isalnum() or char in "-_." else "_" for char in pair.name)
    return f"{safe}-{info.fingerprint[:8]}-{info.engine}-{info.dtype}-{options.max_new_tokens}"
