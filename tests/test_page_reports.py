"""What the Evaluation and Drafts tabs say of a result."""

from __future__ import annotations

import json
import threading

import pytest

from decoding.errors import UserError
from decoding.evaluation.results import ALL, save_result
from decoding.records.fingerprint import fingerprint
from viz.reports.drafts import drafts_report
from viz.reports.evaluation import evaluation_report
from viz.reports.tab import DRAFTS, EVALUATE, _shipped, is_stale, job_options

from .evaluations import make_drafts, make_evaluation
from .page_fakes import fake_pair


def test_the_evaluation_s_sentences_are_its_figures():
    result = make_evaluation()
    report = evaluation_report(result)
    static, best, oracle = report.sections[0].sentences
    assert f"is {result.static_opt}: {result.entry('static-opt').rows[ALL].simulated.speedup.value:.2f} times" in static
    usable = [entry for entry in result.policies if entry.label not in ("autoregressive", "oracle", "oracle:best")]
    fastest = max(usable, key=lambda entry: entry.rows[ALL].simulated.speedup.value)
    assert f"is {fastest.label}: {fastest.rows[ALL].simulated.speedup.value:.2f}x" in best
    assert f"reaches {result.entry('oracle').rows[ALL].simulated.speedup.value:.2f}" in oracle


def test_every_rule_stands_in_the_main_table_and_all_is_plain_json():
    result = make_evaluation()
    content = json.loads(json.dumps(evaluation_report(result).to_dict()))
    rows = content["sections"][0]["tables"][0]["rows"]
    assert len(rows) == len(result.policies)
    assert all(drawing["sentence"] and drawing["title"] for drawing in content["sections"][0]["drawings"])


def test_the_drafts_advice_comes_with_settings_to_copy():
    result = make_drafts()
    content = json.loads(json.dumps(drafts_report(result).to_dict()))
    first = content["sections"][0]
    assert [text for _, text in first["code"]] == [result.recommendation.transformers, result.recommendation.vllm]
    assert first["sentences"] == result.recommendation.sentences


@pytest.mark.parametrize(("kind", "make"), [(EVALUATE, make_evaluation), (DRAFTS, make_drafts)])
def test_the_tab_opens_with_the_shipped_file(tmp_path, kind, make):
    shipped = _shipped(kind, fake_pair(), tmp_path)
    assert "No results are shipped" in shipped({})["error"]
    save_result(make(), tmp_path / f"toy{kind.ending}.json")
    assert shipped({})["report"]["sections"][0]["sentences"]


def test_figures_of_other_weights_say_so(tmp_path):
    pair, setting = fake_pair(), make_evaluation().setting
    assert not is_stale(setting, pair)  # no weights lie here, so nothing is known
    pair.target = str(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert is_stale(setting, pair)
    setting.target_fingerprint = fingerprint(tmp_path)
    assert not is_stale(setting, pair)


def test_a_broken_shipped_file_is_a_sentence(tmp_path):
    (tmp_path / "toy.json").write_text("{")
    assert "not an evaluation" in _shipped(EVALUATE, fake_pair(), tmp_path)({})["error"]


def test_the_form_asks_for_what_the_job_knows():
    from decoding.evaluation.options import options_from_dict

    for kind in (EVALUATE, DRAFTS):
        options = options_from_dict(job_options(kind, "", "code", 12, 4, 2))
        assert (options.limit, options.clock_prompts, options.minutes, options.suite) == (12, 4, 2.0, "code")
    with pytest.raises(UserError, match="number is missing"):
        job_options(EVALUATE, "", "code", None, 4, 2)


def test_only_recorded_results_means_no_measuring():
    from decoding.backends.recorded import RecordedBackend

    events = list(RecordedBackend().run_job("evaluate", {}, threading.Event()))
    assert events[-1].kind == "failed"
