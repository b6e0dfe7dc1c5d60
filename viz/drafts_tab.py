"""What the Drafts tab says: which draft, which SL, here?"""

from __future__ import annotations

from decoding.evaluation.report import drafts_tables
from decoding.evaluation.results import ALL, DraftsResult

from .drafts_figures import draw_drafts
from .report import Report, Section, make_report


def drafts_report(result: DraftsResult) -> Report:
    """The tab's content for ``result``."""
    advice = result.recommendation
    code = [("The same in transformers", advice.transformers), ("The same in vLLM", advice.vllm)]
    sentences = [*advice.sentences, turning_point(result)]
    first = Section("Which draft, which SL, here?", sentences, code=[one for one in code if one[1]])
    return make_report(result.setting, first, drafts_tables(result), draw_drafts(result))


def turning_point(result: DraftsResult) -> str:
    """Where a better draft stops paying: quality rises with size, and so does its cost."""
    best = max(result.drafts, key=lambda draft: draft.speedup[ALL].value)
    closest = max(result.drafts, key=lambda draft: draft.match_rate[ALL])
    rate, reached = f"{closest.match_rate[ALL]:.0%}", f"{best.speedup[ALL].value:.2f}"
    if closest.name == best.name:
        return (
            f"{best.name} guesses best ({rate} of its first choices hold) and is also the fastest: {reached} times "
            f"plain decoding, at a cost of {best.c:.2f} target passes a guess."
        )
    return (
        f"{closest.name} guesses best ({rate} of its first choices hold) but costs {closest.c:.2f} target passes a "
        f"guess; {best.name} ({best.match_rate[ALL]:.0%}, {best.c:.2f}) is the fastest, {reached} times plain decoding."
    )
