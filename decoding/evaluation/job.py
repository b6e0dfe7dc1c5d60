"""Runs the evaluation that the options describe, in its working folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import safe_name
from .drafts import DraftsEvaluation
from .options import EvaluationOptions
from .policies import PolicyEvaluation
from .progress import Progress
from .results import DraftsResult, EvaluationResult

if TYPE_CHECKING:
    from ..engines.pair import Pair


def open_evaluation(
    options: EvaluationOptions, pair: Pair, folder: Path, cancel: Callable[[], bool]
) -> PolicyEvaluation | DraftsEvaluation:
    """The evaluation that ``options`` describe. Raises UserError."""
    kind = DraftsEvaluation if options.drafts == "all" else PolicyEvaluation
    return kind(options, pair, folder, cancel)


def run_evaluation(
    options: EvaluationOptions, pair: Pair, folder: Path, cancel: Callable[[], bool]
) -> Iterator[Progress | EvaluationResult | DraftsResult]:
    """Runs the evaluation that ``options`` describe; ends without a result if ``cancel()`` is true."""
    yield from open_evaluation(options, pair, folder, cancel).run()


def work_name(options: EvaluationOptions, pair: Pair) -> str:
    """Name of the working folder: evaluations that cannot share files get separate folders."""
    info = pair.target.info
    return f"{safe_name(pair.name)}-{info.fingerprint[:8]}-{info.engine}-{info.dtype}-{options.max_new_tokens}"
