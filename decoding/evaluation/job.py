"""Runs the evaluation that the options describe, in its working folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import safe_name
from .drafts import evaluate_drafts
from .options import EvaluationOptions
from .policies import evaluate
from .progress import Progress
from .results import DraftsResult, EvaluationResult

if TYPE_CHECKING:
    from ..engines.pair import Pair

WORK = Path("build") / "evaluation"


def run_evaluation(
    options: EvaluationOptions, pair: Pair, folder: Path, cancel: Callable[[], bool]
) -> Iterator[Progress | EvaluationResult | DraftsResult]:
    """Runs the evaluation that ``options`` describe; ends without a result if ``cancel()`` is true."""
    if options.drafts == "all":
        yield from evaluate_drafts(options, pair, folder, cancel)
    else:
        yield from evaluate(options, pair, folder, cancel)


def work_name(options: EvaluationOptions, pair: Pair) -> str:
    """Name of the working folder: evaluations that cannot share files get separate folders."""
    info = pair.target.info
    return f"{safe_name(pair.name)}-{info.fingerprint[:8]}-{info.engine}-{info.dtype}-{options.max_new_tokens}"
