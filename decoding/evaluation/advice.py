"""The recommended draft and policy, and the matching settings for transformers and vLLM."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..lookahead.lanes import Lane, parse_lane
from ..loop.drafting import NgramDraft
from ..records.model_free import PROMPT_LOOKUP
from ..records.trace import Costs
from .results import ALL, DraftResult, Recommendation


def recommend(drafts: Sequence[DraftResult], target: str, costs: Costs) -> Recommendation:
    """The draft and policy with the largest speedup over all suites; ``target`` is the target's source."""
    best = max(drafts, key=lambda draft: draft.speedup[ALL].value)
    lane = parse_lane(best.best_lane)
    return Recommendation(
        draft=best.name,
        lane=best.best_lane,
        sentences=_sentences(best, drafts, costs),
        transformers=transformers_settings(best, lane, target),
        vllm=vllm_settings(best, target),
    )


def _sentences(best: DraftResult, drafts: Sequence[DraftResult], costs: Costs) -> list[str]:
    gain = best.speedup[ALL]
    sentences = [_verdict(best)]
    others = [draft for draft in drafts if draft.name != best.name]
    if others:
        second = max(others, key=lambda draft: draft.speedup[ALL].value)
        sentences.append(
            f"The next best is {second.name} with {_policy(second)}: {second.speedup[ALL].value:.2f}x "
            f"(c {second.c:.3f}, match rate {second.match_rate[ALL]:.0%})."
        )
    sentences.append(
        f"{best.name} guesses {best.match_rate[ALL]:.0%} of the tokens right at c = {best.c:.3f}; from "
        f"c = {best.break_even_c:.2f} on it would gain nothing."
    )
    losing = [draft.name for draft in drafts if draft.speedup[ALL].value < 1.0]
    if losing and gain.value >= 1.0:
        sentences.append(f"Slower than plain decoding even at their best: {', '.join(losing)}.")
    sentences.append(_too_long(best))
    sentences.append(f"Checking 6 tokens costs the target {costs.check(6):.2f} times as much as checking one.")
    return [sentence for sentence in sentences if sentence]


def _verdict(best: DraftResult) -> str:
    gain = best.speedup[ALL]
    if gain.value < 1.0:
        return f"No draft gains anything here: the best, {best.name}, makes decoding {1 / gain.value:.2f} times slower."
    return (
        f"Use {best.name} with {_policy(best)}, chosen on validation prompts: {gain.value:.2f}x plain decoding, "
        f"simulated over the test prompts (95% interval {gain.low:.2f} to {gain.high:.2f})."
    )


def _policy(draft: DraftResult) -> str:
    """The draft's best policy in words: "Confidence 0.4"."""
    lane = parse_lane(draft.best_lane)
    return " ".join([lane.spec.title, *([lane.argument] if lane.argument else [])])


def _too_long(best: DraftResult) -> str:
    """Whether and where longer speculation becomes slower for this draft."""
    peak = max(best.by_sl, key=lambda point: point.simulated)
    last = best.by_sl[-1]
    if peak.sl == last.sl:
        return f"Its speedup still grows at the longest SL tried ({last.sl})."
    return (
        f"Longer is not better: on the test prompts {best.name} is fastest, in hindsight, at a fixed SL of {peak.sl} "
        f"({peak.simulated:.2f}x) and reaches only {last.simulated:.2f}x at SL {last.sl}."
    )


def transformers_settings(draft: DraftResult, lane: Lane, target: str) -> str:
    """Python code for transformers' assisted generation, with its nearest policy if it lacks this one."""
    if draft.name == PROMPT_LOOKUP.name:
        lookup = f"prompt_lookup_num_tokens={draft.best_sl}, max_matching_ngram_size={NgramDraft.longest}"
        return f"model.generate(**inputs, do_sample=False, {lookup})"
    tokens, schedule, threshold = draft.best_sl, "constant", 0.0
    nearest = ""
    if lane.policy == "heuristic":
        tokens, schedule = 5, "heuristic"
    elif lane.policy == "confidence":
        tokens, threshold = 20, lane.number if lane.number is not None else 0.4
    elif lane.policy != "static":
        nearest = f"# transformers has no {lane.policy} policy: this is the best fixed SL on validation prompts\n"
    return (
        f"# target: {target}, assistant: {draft.source}\n"
        f"# the options are read from the assistant's own config\n{nearest}"
        f"config = assistant.generation_config\n"
        f"config.num_assistant_tokens = {tokens}\n"
        f'config.num_assistant_tokens_schedule = "{schedule}"\n'
        f"config.assistant_confidence_threshold = {threshold:g}\n"
        f"model.generate(**inputs, assistant_model=assistant, do_sample=False)"
    )


def vllm_settings(draft: DraftResult, target: str) -> str:
    """A command line for vLLM, whose SL is fixed: this draft's best static one."""
    if draft.name == PROMPT_LOOKUP.name:
        config = {"method": "ngram", "num_speculative_tokens": draft.best_sl}
        config |= {"prompt_lookup_min": 1, "prompt_lookup_max": NgramDraft.longest}
    else:
        config = {"method": "draft_model", "model": draft.source, "num_speculative_tokens": draft.best_sl}
    return f"vllm serve {target} --speculative-config '{json.dumps(config)}'"
