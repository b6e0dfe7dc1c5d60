"""Whether the lanes of a run wrote the same text, in words."""

from __future__ import annotations

from collections.abc import Callable

from ..records.text import in_words
from ..records.trace import Run, Trace


def verdict(run: Run, name_of: Callable[[str], str]) -> dict[str, str]:
    """One verdict for all lanes: {kind: "same" | "differs" | "free", text}; ``name_of`` gives a lane's name in it."""
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
    return {"kind": "same", "text": f"Same text in {lanes}."}


def _difference(run: Run, trace: Trace, name_of: Callable[[str], str]) -> str:
    found = trace.verdict
    sentence = f"{name_of(trace.lane)} differs from output position {found.first_difference} on"
    if found.gap is None:
        return sentence + "."
    tie = ", a near tie" if found.near_tie else ""
    apart = f"{found.gap:.2g} logits apart in {run.pair.target.dtype}"
    return f"{sentence}: the target's two best tokens there are {apart}{tie}."
