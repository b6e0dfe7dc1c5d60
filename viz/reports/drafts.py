"""The content of the Drafts tab."""

from __future__ import annotations

from decoding.evaluation.places import advise
from decoding.evaluation.report import drafts_tables
from decoding.evaluation.results import DraftsResult, EvaluationResult

from ..figures.drafts import draw_drafts
from .report import Report, Section, make_report


def drafts_report(result: DraftsResult) -> Report:
    """The tab's content for ``result``."""
    advice = advise(result)
    code = [("The same in transformers", advice.transformers), ("The same in vLLM", advice.vllm)]
    first = Section("Which draft, which SL, here?", list(advice.sentences), code=[one for one in code if one[1]])
    return make_report(result.setting, first, drafts_tables(result), draw_drafts(result))


def beside_evaluation(drafts: DraftsResult, evaluation: EvaluationResult) -> str:
    """Why the two tabs recommend different static SLs for the same draft, and which one to use; "" if they agree."""
    same = next((one for one in drafts.drafts if one.name == evaluation.setting.draft), None)
    if same is None or same.best_sl == evaluation.static_opt:
        return ""
    few, many = drafts.setting.validation_prompts, evaluation.setting.validation_prompts
    text = (
        f"The Evaluation tab gives SL {evaluation.static_opt} as the best static SL of {same.name}, chosen on {many} "
        f"validation prompts; here it is SL {same.best_sl}, chosen on {few}: "
        f"use {_of_more(same.best_sl, few, evaluation)}"
    )
    speedups = {point.sl: point.simulated for point in same.by_sl}
    both = [speedups.get(sl) for sl in (same.best_sl, evaluation.static_opt)]
    return f"{text}. On the test prompts here they give {both[0]:.2f}x and {both[1]:.2f}x." if all(both) else f"{text}."


def _of_more(best_sl: int, prompts: int, evaluation: EvaluationResult) -> int:
    """The SL that was chosen on more validation prompts."""
    return evaluation.static_opt if evaluation.setting.validation_prompts >= prompts else best_sl
