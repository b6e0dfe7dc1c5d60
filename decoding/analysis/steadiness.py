"""Whether a run's measurements are consistent. On a machine that is busy with other work they may not be."""

from __future__ import annotations

from collections.abc import Sequence

from ..lookahead.fitted import make_policy
from ..lookahead.lanes import parse_lane
from ..records.text import counted
from ..records.trace import Run, Trace
from .metrics import speedup, speedups
from .whatif import Replay

# By how much a longer check may be timed as cheaper than a shorter one (v is fitted through both):
MAX_CONTRADICTION = 0.25
MIN_STEP = 0.97  # v(n) / v(n - 1) below which the measurements of v contradict each other
MAX_RATIO = 1.3  # largest ratio between a static lane's measured and simulated speedup
MAX_SPREAD = 2.0  # highest / lowest speedup of the repeats beyond which their median means little


def timings(run: Run) -> int:
    """How many repeats stand behind the figures: those in which every lane ran."""
    return min((len(trace.repeats) for trace in run.lanes), default=0)


def how_timed(run: Run) -> str:
    """ "3 timings", of which a figure is the median; "1 of 3 timings" of a run that was stopped."""
    made, asked = timings(run), run.settings.repeats
    return f"{made} of {asked} timings" if made < asked else counted(made, "timing")


def contradictions(run: Run) -> list[str]:
    """Contradictions between the measurements of ``run``, one clause each; [] if there are none.

    A pass over more tokens is never cheaper, and a lane cannot be far from its replay at the measured costs.
    """
    found = []
    v = run.costs.verify_curve
    if run.costs.contradiction > MAX_CONTRADICTION:
        found.append("longer checks were timed as cheaper than shorter ones")
    if v[0] and run.costs.verify(min(6, len(v))) < MIN_STEP * v[0]:
        found.append("checking 6 tokens came out cheaper than producing one")
    elif any(later < MIN_STEP * earlier for earlier, later in zip(v, v[1:])):
        found.append("checking more tokens came out cheaper than checking fewer")
    return found + [clause for trace in run.lanes if (clause := _against_its_replay(run, trace))]


def unsteady(doubtful: Sequence[str]) -> str:
    """What :func:`contradictions` found, in a sentence."""
    return f"Timings are unsteady here ({'; '.join(doubtful)}): run it again when nothing else runs on the machine."


def _against_its_replay(run: Run, trace: Trace) -> str:
    measured, chain = speedup(run, trace), run.chains.get(trace.draft or "")
    if trace.policy != "static" or measured is None or chain is None or not chain.target or not measured.median:
        return ""
    lane = parse_lane(trace.lane)
    simulated = Replay.of_run(run, chain.draft).simulate(run.costs, make_policy(lane)).speedup
    if 1 / MAX_RATIO < simulated / measured.median < MAX_RATIO:
        return ""
    name = f"{lane.spec.title} {lane.argument}" + (f" · {lane.draft}" if lane.draft else "")
    came_out = f"{name} came out {measured.median:.2f}×"
    return f"{came_out}, its replay at the measured costs {simulated:.2f}×"


def wavering(run: Run, trace: Trace) -> tuple[float, float] | None:
    """(lowest, highest) speedup of the repeats if they are too far apart for a median, otherwise None.

    With five repeats or more, one outlier on each side is ignored, unless it makes a slow-down of the median's gain.
    """
    ratios = sorted(speedups(run, trace))
    ignored = len(ratios) >= 5 and not ratios[0] < 1 < ratios[len(ratios) // 2]
    inner = ratios[1:-1] if ignored else ratios
    if not inner or inner[-1] <= MAX_SPREAD * inner[0]:
        return None
    return ratios[0], ratios[-1]
