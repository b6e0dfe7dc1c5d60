"""Whether a run's readings can be true together. On a machine that is busy with other work they may not be."""

from __future__ import annotations

from ..lookahead.lanes import parse_lane
from ..records.trace import Run, Trace
from .metrics import speedup, speedups
from .whatif import Replay, ending, static_sweep

FALL = 0.97  # v(n) over v(n - 1) under which the readings of v contradict each other
TWINS = 1.3  # a static lane as measured over the same lane as simulated, or the other way
WAVERING = 2.0  # highest over lowest speedup of the repeats, beyond which their median says little


def contradictions(run: Run) -> list[str]:
    """What in ``run`` cannot be true at once, a clause each; [] where its figures go together.

    A pass over more tokens is never cheaper, and a lane cannot be far from its own replay at the measured costs.
    """
    found = []
    v = run.costs.v
    if v[0] and run.costs.check(min(6, len(v))) < FALL * v[0]:
        found.append("checking 6 tokens came out cheaper than producing one")
    elif any(later < FALL * earlier for earlier, later in zip(v, v[1:])):
        found.append("checking more tokens came out cheaper than checking fewer")
    return found + [clause for trace in run.lanes if (clause := _against_its_replay(run, trace))]


def _against_its_replay(run: Run, trace: Trace) -> str:
    measured, chain = speedup(run, trace), run.chains.get(trace.draft or "")
    if trace.policy != "static" or measured is None or chain is None or not chain.target or not measured.median:
        return ""
    sl = int(parse_lane(trace.lane).number or 0)
    replayed = static_sweep(Replay(chain), run.costs, **ending(run))
    if not 1 <= sl <= len(replayed):
        return ""
    simulated = replayed[sl - 1].speedup
    if 1 / TWINS < simulated / measured.median < TWINS:
        return ""
    told = f"the lane {trace.lane} came out {measured.median:.2f}×"
    return f"{told}, its replay at the measured costs {simulated:.2f}×"


def wavering(run: Run, trace: Trace) -> tuple[float, float] | None:
    """(lowest, highest) speedup of the repeats where they are too far apart for a median; None where they are not.

    Of five repeats or more, one on each side may be off.
    """
    ratios = sorted(speedups(run, trace))
    inner = ratios[1:-1] if len(ratios) >= 5 else ratios
    if not inner or inner[-1] <= WAVERING * inner[0]:
        return None
    return ratios[0], ratios[-1]
