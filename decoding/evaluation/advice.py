"""The recommended draft and policy, and the matching settings for transformers and vLLM. Imports no torch.

The settings name the models of an installed pair by the paths and Hub ids by which other engines find them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..lookahead.lanes import Lane, parse_lane
from ..records.pairs import LONGEST_MATCH, MODELS, PROMPT_LOOKUP, TEXT_MODEL, PairDescription, embedded_pairs
from ..records.weights import fingerprint, read_record, whole_draft
from .results import Draft, EvaluationResult, Figure


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended draft and policy, and the matching settings elsewhere."""

    draft: str
    lane: str
    sentences: list[str]
    titles: tuple[str, str]  # of the two settings: see :func:`settings_titles`
    transformers: str
    vllm: str


def recommend(result: EvaluationResult, anywhere: bool = False) -> Recommendation:
    """The draft and policy with the largest speedup over all suites.

    ``anywhere``: models by Hub ids and paths within the repository alone, for a file that is read on other machines.
    """
    best = max(result.drafts, key=lambda draft: _gain(result, draft).value)
    pair = next((one for one in embedded_pairs() if one.name == result.setting.pair), None)
    theirs = _for_other_engines(result, best, pair)
    target, folder = _places(result, pair, theirs.name, anywhere)
    source = theirs.source if folder is None else _shown(folder)
    lane = parse_lane(theirs.best_lane)
    sentences = _sentences(result, best)
    if theirs is not best:
        sentences.append(
            f"{best.name} reads the target's hidden states in this project's way, which no other engine knows: the "
            f"settings below are for {theirs.name}. Of the drafts that read only the text it gains most at a static "
            f"SL: {_at_best_sl(result, theirs).value:.2f}× at SL {theirs.best_sl}."
        )
    return Recommendation(
        draft=best.name,
        lane=best.best_lane,
        sentences=[*sentences, *(_of_lacking(folder) if folder else ())],
        titles=settings_titles(theirs, lane, theirs is best),
        transformers=transformers_settings(theirs, lane, source, target),
        vllm=vllm_settings(theirs, source, target),
    )


def _for_other_engines(result: EvaluationResult, best: Draft, pair: PairDescription | None) -> Draft:
    """``best``, if it is a language model of its own or prompt lookup, else the best of these at a static SL, which
    every engine has; ``best`` if there is none.
    """
    kinds = pair.draft_kinds if pair else {}
    known = [draft for draft in result.drafts if kinds.get(draft.name, TEXT_MODEL).kind == TEXT_MODEL.kind]
    return best if best in known else max(known, key=lambda draft: _at_best_sl(result, draft).value, default=best)


def _at_best_sl(result: EvaluationResult, draft: Draft) -> Figure:
    return result.by_sl(draft.name)[draft.best_sl]


def _gain(result: EvaluationResult, draft: Draft) -> Figure:
    """The speedup of the draft's best policy, with its interval."""
    return result.need("speedup", draft.best_policy, draft=draft.name)


# -- in words ------------------------------------------------------------------------------------------


def _sentences(result: EvaluationResult, best: Draft) -> list[str]:
    sentences = [_verdict(best, _gain(result, best))]
    others = [draft for draft in result.drafts if draft.name != best.name]
    if others:
        second = max(others, key=lambda draft: _gain(result, draft).value)
        match = result.value("match_rate", draft=second.name)
        gains = {draft.name: f"{_gain(result, draft).value:.2f}×" for draft in others}
        as_fast = [name for name, gain in gains.items() if name != second.name and gain == gains[second.name]]
        sentences.append(
            f"The next best is {second.name} with {_policy(second)}: {gains[second.name]} (at its best SL a "
            f"guess costs {result.guess_cost(second):.3f} passes; match rate {match:.0%})."
        )
        if as_fast:
            sentences.append(f"As fast, each with its best policy: {', '.join(as_fast)}.")
    c, match, limit = (result.value(name, draft=best.name) for name in ("c", "match_rate", "break_even_c"))
    sentences.append(
        f"{best.name} guesses {match:.0%} of the tokens right at c = {c:.3f}. With c above {limit:.2f} it would gain "
        "nothing."
    )
    losing = [draft.name for draft in result.drafts if _gain(result, draft).value < 1.0]
    if losing and _gain(result, best).value >= 1.0:
        sentences.append(f"Slower than plain decoding even at their best: {', '.join(losing)}.")
    check = result.setting.costs.verify(6)
    return [
        *sentences,
        _too_long(best, result.by_sl(best.name)),
        f"Checking 6 tokens takes the target {check:.2f}× as long as checking one.",
    ]


def _verdict(best: Draft, gain: Figure) -> str:
    if gain.value < 1.0:
        return f"No draft gains anything: the best, {best.name}, is {gain.value:.2f}× as fast as plain decoding."
    between = "" if gain.low is None else f" (95% interval {gain.low:.2f} to {gain.high:.2f})"
    return (
        f"Use {best.name} with {_policy(best)}, chosen on validation prompts: {gain.value:.2f}× as fast as plain "
        f"decoding, simulated over the test prompts{between}."
    )


def _policy(draft: Draft) -> str:
    """The draft's best policy in words: "Confidence 0.4"."""
    lane = parse_lane(draft.best_lane)
    return " ".join([lane.spec.title, *([lane.argument] if lane.argument else [])])


def _too_long(best: Draft, figures: Mapping[int, Figure]) -> str:
    """Whether and where longer speculation becomes slower for this draft."""
    speedups = {sl: one.value for sl, one in figures.items()}
    peak, last = max(speedups, key=speedups.__getitem__), max(speedups)
    if peak == last:
        return f"Its speedup still grows at the longest SL tried ({last})."
    beside = f"; SL {best.best_sl}, which validation chose, reaches {speedups[best.best_sl]:.2f}×"
    return (
        f"Longer is not better: in hindsight, on the test prompts, {best.name} is fastest at a static SL of {peak} "
        f"({speedups[peak]:.2f}×){beside if best.best_sl != peak else ''}. At SL {last} it reaches "
        f"only {speedups[last]:.2f}×."
    )


# -- settings for other engines ------------------------------------------------------------------------

IN_TRANSFORMERS = ("static", "heuristic")  # the policies that it has; its threshold of confidence may move
IN_VLLM = ("static",)


def settings_titles(draft: Draft, lane: Lane, is_best: bool) -> tuple[str, str]:
    """Headings of the settings for transformers and vLLM: an engine without the policy, or without the recommended
    draft (``draft`` then serves instead), gets "The nearest in".
    """
    in_transformers = IN_VLLM if draft.name == PROMPT_LOOKUP.name else IN_TRANSFORMERS
    same = {"transformers": lane.policy in in_transformers, "vLLM": lane.policy in IN_VLLM}
    one, two = (f"The {'same' if is_best and has else 'nearest'} in {engine}" for engine, has in same.items())
    return one, two


def transformers_settings(draft: Draft, lane: Lane, source: str, target: str) -> str:
    """Python code for transformers' assisted generation, with its nearest policy if it lacks this one."""
    if draft.name == PROMPT_LOOKUP.name:
        lookup = f"prompt_lookup_num_tokens={draft.best_sl}, max_matching_ngram_size={LONGEST_MATCH}"
        return f"model.generate(**inputs, do_sample=False, {lookup})"
    tokens, schedule, threshold = draft.best_sl, "constant", 0.0
    remark = ""
    if lane.policy == "heuristic":
        tokens, schedule = 5, "heuristic_transient"  # "heuristic" begins a text with the last one's SL
    elif lane.policy == "confidence":
        tokens, threshold = 20, lane.number if lane.number is not None else 0.4
        remark = "# where scikit-learn is installed, transformers moves the threshold after each check\n"
    elif lane.policy != "static":
        remark = f"# transformers has no policy {lane.spec.title}: this is the best static SL on validation prompts\n"
    return (
        f"# target: {target}, assistant: {source}\n"
        f"# the options are read from the assistant's own config\n{remark}"
        f"config = assistant.generation_config\n"
        f"config.num_assistant_tokens = {tokens}\n"
        f'config.num_assistant_tokens_schedule = "{schedule}"\n'
        f"config.assistant_confidence_threshold = {threshold:g}\n"
        f"model.generate(**inputs, assistant_model=assistant, do_sample=False)"
    )


def vllm_settings(draft: Draft, source: str, target: str) -> str:
    """A command line for vLLM, whose SL is fixed: this draft's best static one."""
    if draft.name == PROMPT_LOOKUP.name:
        config = {"method": "ngram", "num_speculative_tokens": draft.best_sl}
        config |= {"prompt_lookup_min": 1, "prompt_lookup_max": LONGEST_MATCH}
    else:
        config = {"method": "draft_model", "model": source, "num_speculative_tokens": draft.best_sl}
    return shlex.join(["vllm", "serve", target, "--speculative-config", json.dumps(config)])


# -- where other engines find the models ---------------------------------------------------------------


def _places(
    result: EvaluationResult, pair: PairDescription | None, draft: str, anywhere: bool
) -> tuple[str, Path | None]:
    """Where the target is, and the folder of the ``draft`` of an installed ``pair``; None: it has none."""
    if pair is None:  # a Hub id, or the last part of a folder that only its owner knows
        target = result.setting.target
        return target if "/" in target else f"FOLDER/{target}", None
    record, folder = read_record(pair.target), Path(pair.drafts[draft]) if draft in pair.drafts else None
    if folder is not None and not anywhere:
        whole = whole_draft(folder, fingerprint(pair.target))
        folder = whole if whole.is_dir() else folder
    if record is None:
        return _shown(Path(pair.target)), folder
    here = not anywhere and record.unpacked.is_dir()
    return str(record.unpacked) if here else record.card.removeprefix("https://huggingface.co/"), folder


def _of_lacking(folder: Path) -> Iterator[str]:
    """A sentence if transformers cannot load ``folder``: a draft's own weights alone have another name."""
    if not any(folder.glob("model*.safetensors")):
        yield (
            f"{_shown(folder)} lacks the weights that the draft shares with its target. Once the pair has run, the "
            f"whole model is in ~/.cache/speculoscope/models/{folder.name}-..., or in $SPECULOSCOPE_CACHE/models: "
            "give other engines that path."
        )


def _shown(folder: Path) -> str:
    """``folder`` relative to the project's folder, if it is inside."""
    return str(folder.relative_to(MODELS.parent)) if folder.is_relative_to(MODELS.parent) else str(folder)
