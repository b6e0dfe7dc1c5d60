"""Finds the recording for a lesson by the features of the runs, so that lessons stay valid with other recordings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from statistics import median

from decoding.analysis.metrics import speedup
from decoding.backends.recorded import RecordedBackend
from decoding.errors import UserError
from decoding.records.trace import Run

log = logging.getLogger(__name__)


def usable_speedups(run: Run) -> list[float]:
    """Each deployable lane's speedup, as the median over the repeats."""
    lanes = [trace for trace in run.lanes if trace.policy not in ("autoregressive", "oracle")]
    return [spread.median for spread in (speedup(run, trace) for trace in lanes) if spread]


def find_roles(backend: RecordedBackend) -> dict[str, str]:
    """Kind of run -> id of the recording that shows it best; kinds without a recording are left out.

    everyday: the speedup nearest to the median; burst: the largest speedup; loses: a lane slower than plain decoding;
    drafts: two drafts, each with a chain; sampling, coupling: recorded with that acceptance rule.
    """
    runs = [run for run in (_load(backend, info.id) for info in backend.recordings()) if run is not None]
    roles: dict[str, str] = {}
    greedy = [run for run in runs if run.settings.rule == "greedy" and run.chains and usable_speedups(run)]
    if greedy:
        middle = median(max(usable_speedups(run)) for run in greedy)
        roles["everyday"] = min(greedy, key=lambda run: abs(max(usable_speedups(run)) - middle)).id
        roles["burst"] = max(greedy, key=lambda run: max(usable_speedups(run))).id
    kinds: dict[str, Callable[[Run], bool]] = {
        "loses": lambda run: min(usable_speedups(run), default=1.0) < 0.97,
        "drafts": lambda run: sum(bool(chain.target) for chain in run.chains.values()) > 1,
        "sampling": lambda run: run.settings.rule == "sampling",
        "coupling": lambda run: run.settings.rule == "coupling",
    }
    for role, fits in kinds.items():
        found = next((run.id for run in runs if fits(run)), None)
        if found:
            roles[role] = found
    return roles


def _load(backend: RecordedBackend, identifier: str) -> Run | None:
    try:
        return backend.load(identifier)
    except UserError as error:  # one broken file must not disable all lessons
        log.warning("%s", error)
        return None
