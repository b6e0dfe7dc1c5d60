"""Which tokens of a text a picture decides, and how many rejected guesses stand at them.

A draft that reads the text alone cannot know these tokens (Gagrani et al. 2024, On Speculative Decoding for Multimodal
Large Language Models).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from ..records.text import counted
from ..records.trace import Run, Trace

DECIDES = 2.0  # times as probable with the picture as with a grey one
LEAST = 1e-6  # probabilities are recorded in six decimals


@dataclass(frozen=True, slots=True)
class Seen:
    """Counts of one lane: tokens of its text, and guesses that the target rejected."""

    tokens: int
    by_picture: int
    rejected: int
    rejected_by_picture: int


def probabilities(trace: Trace) -> list[tuple[float, float]]:
    """Of each token of the output, the target's probability with the picture and with a grey one; [] if unknown."""
    tokens = [token for iteration in trace.iterations for token in iteration.tokens]
    pairs = zip(tokens, trace.p_grey)
    return [(token.p_target if token.p_target is not None else grey, grey) for token, grey in pairs]


def decides(p: float, grey: float) -> bool:
    """Whether the picture decides a token: without it, the target would have been much less sure."""
    return p >= DECIDES * max(grey, LEAST)


def log_probability(p: float) -> float:
    """In nats; of less than what is recorded, the least that is."""
    return log(max(p, LEAST))


def count_seen(trace: Trace) -> Seen | None:
    """None for a run without a picture. In a tree all guesses for one place count as one."""
    by_picture = [decides(*both) for both in probabilities(trace)]
    if not by_picture:
        return None
    corrected = [it.start + it.n_accepted for it in trace.iterations if it.emitted and it.emitted.fate == "correction"]
    return Seen(len(by_picture), sum(by_picture), len(corrected), sum(by_picture[at] for at in corrected))


def seen_sentence(run: Run, trace: Trace) -> str:
    """What the picture decided in ``trace``, in one or two sentences; "" without a picture."""
    seen = count_seen(trace) if run.picture else None
    if seen is None:
        return ""
    share = f"Of {counted(seen.tokens, 'token')} the picture decides {seen.by_picture}."
    if not seen.rejected:
        return share
    corrections = counted(seen.rejected, "correction")  # of a tree, too: one an iteration
    return f"Of {corrections}, {seen.rejected_by_picture} came at words that the picture decides. {share}"
