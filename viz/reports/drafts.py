"""What the Drafts tab says: which draft, which SL, here?"""

from __future__ import annotations

from decoding.evaluation.report import drafts_tables
from decoding.evaluation.results import DraftsResult

from ..figures.drafts import draw_drafts
from .report import Report, Section, make_report


def drafts_report(result: DraftsResult) -> Report:
    """The tab's content for ``result``."""
    advice = result.recommendation
    code = [("The same in transformers", advice.transformers), ("The same in vLLM", advice.vllm)]
    first = Section("Which draft, which SL, here?", list(advice.sentences), code=[one for one in code if one[1]])
    return make_report(result.setting, first, drafts_tables(result), draw_drafts(result))
