"""What may be doubted of a run: whether its lanes wrote the same text, and whether its measurements are consistent. On
a machine that is busy with other work they may not be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ..errors import UserError
from ..lookahead.lanes import parse_lane, spec_of
from ..records.text import counted, in_words
from ..records.trace import Costs, Run, Trace
from .metrics import predicted_cost, speedup, speedups
from .run_costs import run_costs

# By how much a longer check may be timed as cheaper than a shorter one (v is fitted through both):
MAX_CONTRADICTION = 0.25
MIN_STEP = 0.97  # v(n) / v(n - 1) below which the measurements of v contradict each other
MAX_RATIO = 1.3  # largest ratio between a lane's measured speedup and that which the costs predict
MOST_LANES = 2  # that are named
_NUMBER = re.compile(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?", re.ASCII)
MAX_SPREAD = 2.0  # highest / lowest speedup of the repeats beyond which their median means little


def verdict(run: Run, name_of: Callable[[str], str]) -> dict[str, str]:
    """Whether the lanes of a run wrote the same text: {kind: "same" | "differs" | "free", text}, one verdict for all;
    ``name_of`` gives a lane's name in it.
    """
    others = [trace for trace in run.lanes if trace is not run.baseline]
    differing = [trace for trace in others if trace.verdict.same is False]
    if differing:
        return {"kind": "differs", "text": " ".join(_difference(run, trace, name_of) for trace in differing)}
    if any(trace.verdict.same is None for trace in others):
        text = "Texts may differ: speculative sampling keeps the distribution, but not the individual draws."
        if run.baseline is not None:
            text += " A speedup then also compares texts that are not equally easy to guess."
        return {"kind": "free", "text": text}
    if len(run.lanes) < 2:
        return {"kind": "free", "text": "One lane: no other text to compare with."}
    lanes = "both lanes" if len(run.lanes) == 2 else f"all {in_words(len(run.lanes))} lanes"
    far = ", as far as each goes" if len({len(trace.output) for trace in run.lanes}) > 1 else ""
    return {"kind": "same", "text": f"Same text in {lanes}{far}."}


def _difference(run: Run, trace: Trace, name_of: Callable[[str], str]) -> str:
    found = trace.verdict
    sentence = f"{name_of(trace.lane)} differs from output position {found.first_difference} on"
    if found.gap is None:
        return sentence + "."
    tie = ", a near tie" if found.near_tie else ""
    apart = f"{found.gap:.2g} logits apart in {run.pair.target.dtype}"
    return f"{sentence}: the target's two best tokens there are {apart}{tie}."


def timings(run: Run) -> int:
    """How many repeats stand behind the figures: those in which every lane ran."""
    return min((len(trace.repeats) for trace in run.lanes), default=0)


def how_timed(run: Run) -> str:
    """ "3 timings", of which a figure is the median; "1 of 3 timings" of a run that was stopped."""
    made, asked = timings(run), run.settings.repeats
    return f"{made} of {asked} timings" if made < asked else counted(made, "timing")


def contradictions(run: Run) -> list[str]:
    """Contradictions between the measurements of ``run``, one clause each; [] if there are none.

    A pass over more tokens is never cheaper, also by the run's own iterations, and a lane cannot be far from what the
    measured costs predict for it.
    """
    found = []
    if run.costs.contradiction > MAX_CONTRADICTION:
        found.append("longer checks were timed as cheaper than shorter ones")
    own = run_costs(run)
    curves = run.costs.verify_curve, own.verify_curve
    if any(v[min(6, len(v)) - 1] < MIN_STEP * v[0] for v in curves):
        found.append("checking 6 tokens came out cheaper than producing one")
    elif any(later < MIN_STEP * earlier for v in curves for earlier, later in zip(v, v[1:])):
        found.append("checking more tokens came out cheaper than checking fewer")
    lanes = [clause for trace in run.lanes if (clause := _against_its_costs(run, trace, own))]
    more = [f"{counted(len(lanes) - MOST_LANES, 'other lane')} likewise"] if len(lanes) > MOST_LANES else []
    return [*found, *lanes[:MOST_LANES], *more]


def unsteady(doubtful: Sequence[str]) -> str:
    """What :func:`contradictions` found, in a sentence."""
    return f"Timings are unsteady here ({'; '.join(doubtful)}): run it again when nothing else runs on the machine."


def _against_its_costs(run: Run, trace: Trace, own: Costs) -> str:
    """Static lanes are compared with the frozen curves, since ``own`` costs are scaled to meet them; all others with
    those, since in a long text checks grow for all lanes. Trees are not: a pass that branches costs more than v(n).
    """
    measured, chain = speedup(run, trace), run.chains.get(trace.draft or "")
    if measured is None or chain is None or not (chain.target and trace.iterations and measured.median):
        return ""
    came_out = f"{_name(trace.lane)} came out {measured.median:.2f}×"
    per_pass = len(trace.output) / len(trace.iterations)
    if MIN_STEP * measured.median > per_pass:
        return f"{came_out} with {per_pass:.2f} tokens per pass of the target"
    if any(it.parents is not None for it in trace.iterations):
        return ""
    costs = run.costs if trace.policy == "static" else own
    predicted = len(trace.output) * costs.iteration(0, None) / predicted_cost(costs, trace)
    is_near = 1 / MAX_RATIO < predicted / measured.median < MAX_RATIO
    return "" if is_near else f"{came_out}, by the measured costs {predicted:.2f}×"


def _name(lane: str) -> str:
    """A lane in words, "Confidence 0.4 · small"; as it is written if another version wrote it: with a policy that this
    one lacks, or a number that it refuses. Raises UserError for other arguments, which no version wrote.
    """
    try:
        read = parse_lane(lane)
    except UserError:
        if spec_of(lane) is None or _NUMBER.fullmatch(lane.partition(":")[2]):
            return lane
        raise
    return " ".join(filter(None, (read.spec.title, read.argument))) + (f" · {read.draft}" if read.draft else "")


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
