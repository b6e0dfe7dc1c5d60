"""The content of the Drafts tab."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from decoding.errors import UserError
from decoding.evaluation.advice import recommend
from decoding.evaluation.report import drafts_tables
from decoding.evaluation.results import DraftsResult, EvaluationResult, Recommendation
from decoding.files import cache_folder, safe_name
from decoding.records.fingerprint import fingerprint
from decoding.records.gguf_record import GgufRecord, read_record
from decoding.records.pairs import MODELS, PairDescription, embedded_pairs

from ..figures.drafts import draw_drafts
from .report import Report, Section, make_report


def drafts_report(result: DraftsResult) -> Report:
    """The tab's content for ``result``."""
    advice = advise(result)
    code = [("The same in transformers", advice.transformers), ("The same in vLLM", advice.vllm)]
    first = Section("Which draft, which SL, here?", list(advice.sentences), code=[one for one in code if one[1]])
    return make_report(result.setting, first, drafts_tables(result), draw_drafts(result))


def advise(result: DraftsResult) -> Recommendation:
    """The recommendation of ``result``, with paths of this machine for the models of an installed pair."""
    pair = next((one for one in embedded_pairs() if one.name == result.setting.pair), None)
    if pair is None:
        return result.recommendation
    record = read_record(pair.target)
    drafts = [replace(draft, source=_draft_place(pair, record, draft.name) or draft.source) for draft in result.drafts]
    return recommend(drafts, _target_place(pair, record), result.setting.costs)


def _target_place(pair: PairDescription, record: GgufRecord | None) -> str:
    """A folder, or a Hub id if the weights have not been unpacked on this machine."""
    if record is None:
        return _shown(Path(pair.target))
    return str(record.unpacked) if record.unpacked.is_dir() else record.card.removeprefix("https://huggingface.co/")


def _draft_place(pair: PairDescription, record: GgufRecord | None, draft: str) -> str:
    """The folder of ``draft`` that transformers can load; "" if it is not a model of the pair.

    A draft that shares weights with its target lies whole in the cache, once it has run here.
    """
    if draft not in pair.drafts:
        return ""
    folder = Path(pair.drafts[draft])
    try:
        whole = (
            cache_folder()
            / "models"
            / f"{safe_name(folder.name)}-{fingerprint(folder)}-{record.mark if record else ''}"
        )
    except UserError:
        return _shown(folder)
    return str(whole) if whole.is_dir() else _shown(folder)


def _shown(folder: Path) -> str:
    """``folder`` relative to the project's folder, if it is inside."""
    return str(folder.relative_to(MODELS.parent)) if folder.is_relative_to(MODELS.parent) else str(folder)


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
