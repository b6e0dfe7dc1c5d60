"""The recommended draft and policy, and the settings for transformers and vLLM that say the same."""

import json
from dataclasses import replace

import pytest

from decoding.evaluation.advice import recommend, settings_titles, transformers_settings, vllm_settings
from decoding.lookahead.lanes import parse_lane
from tests.evaluations import make_drafts
from viz.player.names import lane_name


def test_the_recommendation_is_the_fastest_draft_and_is_written_out_for_other_engines():
    result = make_drafts()
    advice = recommend(result)
    best = max(result.drafts, key=lambda draft: result.value("speedup", draft.best_policy, draft=draft.name))
    assert advice.draft == best.name and lane_name(best.best_lane).split(" · ")[0] in advice.sentences[0]
    config = json.loads(advice.vllm.partition("--speculative-config ")[2].strip("'"))
    assert config["num_speculative_tokens"] == best.best_sl


@pytest.mark.parametrize(
    "lane, lines",
    [
        ("x/static:7", ["num_assistant_tokens = 7", '"constant"', "threshold = 0\n"]),
        ("x/heuristic", ["num_assistant_tokens = 5", '"heuristic"', "threshold = 0\n"]),
        ("x/confidence:0.3", ["num_assistant_tokens = 20", '"constant"', "threshold = 0.3\n"]),
        ("x/disco", ["has no disco policy", "num_assistant_tokens = 7"]),
    ],
)
def test_settings_for_transformers(lane, lines):
    draft = replace(make_drafts().drafts[0], name="x", best_sl=7)
    text = transformers_settings(draft, parse_lane(lane), "source", "target")
    for line in lines:
        assert line in text
    compile(text, "settings", "exec")


def test_settings_for_prompt_lookup():
    draft = replace(make_drafts().drafts[0], name="ngram", best_sl=9)
    text = transformers_settings(draft, parse_lane("ngram/static:9"), "", "t")
    assert "prompt_lookup_num_tokens=9, max_matching_ngram_size=3" in text
    assert '"method": "ngram"' in vllm_settings(draft, "", "t")


def test_a_losing_ladder_is_called_losing():
    assert "No draft gains anything" in recommend(make_drafts(c=4.0)).sentences[0]


@pytest.mark.parametrize(
    "lane, titles",
    [
        ("static:4", ("The same in transformers", "The same in vLLM")),
        ("confidence:0.4", ("The same in transformers", "The nearest in vLLM")),
        ("disco", ("The nearest in transformers", "The nearest in vLLM")),
    ],
)
def test_another_engine_s_settings_are_called_the_same_only_if_it_has_the_policy(lane, titles):
    assert settings_titles(make_drafts().drafts[0], parse_lane(lane)) == titles
    assert recommend(make_drafts()).titles[1].endswith("in vLLM")


def test_the_best_sl_in_hindsight_is_told_from_the_one_that_validation_chose():
    result = make_drafts()
    name = recommend(result).draft
    speedups = {sl: one.value for sl, one in result.by_sl(name).items()}
    peak = max(speedups, key=speedups.__getitem__)
    drafts = [replace(draft, best_sl=peak + 1) for draft in result.drafts]
    said = " ".join(recommend(replace(result, drafts=drafts)).sentences)
    assert f"in hindsight, on the test prompts, {name} is fastest at a fixed SL of {peak}" in said
    assert f"SL {peak + 1}, which validation chose, reaches {speedups[peak + 1]:.2f}×" in said
