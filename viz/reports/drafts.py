"""The content of the Drafts tab."""

from __future__ import annotations

import re

from decoding.evaluation.report import drafts_tables
from decoding.evaluation.results import DraftsResult, EvaluationResult
from decoding.records.pairs import MODELS

from ..figures.drafts import draw_drafts
from .report import Report, Section, make_report


def drafts_report(result: DraftsResult) -> Report:
    """The tab's content for ``result``."""
    advice = result.recommendation
    code = [("The same in transformers", advice.transformers), ("The same in vLLM", advice.vllm)]
    code = [(title, with_paths(text, result.setting.pair)) for title, text in code if text]
    first = Section("Which draft, which SL, here?", list(advice.sentences), code=code)
    return make_report(result.setting, first, drafts_tables(result), draw_drafts(result))


def with_paths(text: str, pair: str) -> str:
    """``text`` with the sources of ``pair``'s models as paths from this folder, where they lie there."""

    def placed(found: re.Match[str]) -> str:
        name = found[0].removeprefix(f"{pair}/")
        places = (f"{pair}/{name}", f"{pair}/drafts/{name}")
        return next((f"{MODELS.name}/{place}" for place in places if (MODELS / place).is_dir()), found[0])

    return re.sub(rf"(?<![\w/]){re.escape(pair)}(?:/[\w.-]+)+", placed, text)


def beside_evaluation(drafts: DraftsResult, evaluation: EvaluationResult) -> str:
    """Why the two tabs advise different static SLs for the same draft, and which one to take; "" where they agree."""
    same = next((one for one in drafts.drafts if one.name == evaluation.setting.draft), None)
    if same is None or same.best_sl == evaluation.static_opt:
        return ""
    few, many = drafts.setting.validation_prompts, evaluation.setting.validation_prompts
    text = (
        f"The Evaluation tab has SL {evaluation.static_opt} as the best static one of {same.name}, chosen on {many} "
        f"validation prompts; here it is SL {same.best_sl}, chosen on {few}: "
        f"take {_of_more(same.best_sl, few, evaluation)}"
    )
    speedups = {point.sl: point.simulated for point in same.by_sl}
    both = [speedups.get(sl) for sl in (same.best_sl, evaluation.static_opt)]
    return f"{text}. On the test prompts here they give {both[0]:.2f}x and {both[1]:.2f}x." if all(both) else f"{text}."


def _of_more(best_sl: int, prompts: int, evaluation: EvaluationResult) -> int:
    """The advice that more validation prompts speak for."""
    return evaluation.static_opt if evaluation.setting.validation_prompts >= prompts else best_sl
