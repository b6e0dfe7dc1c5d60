"""The content of the Evaluation and Drafts tabs."""

from __future__ import annotations

import csv
import io
import json
import re
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from decoding.errors import UserError
from decoding.evaluation.results import ALL, save_result
from decoding.records.events import Event
from decoding.records.fingerprint import fingerprint
from decoding.records.pairs import embedded_pairs
from viz.player.names import lane_name
from viz.reports.drafts import advise, beside_evaluation, drafts_report
from viz.reports.evaluation import evaluation_report
from viz.reports.kept import Kept
from viz.reports.tab import DRAFTS, EVALUATE, _answers, _finish, is_stale, job_options

from .evaluations import make_drafts, make_evaluation
from .page_fakes import fake_pair


def test_the_evaluation_s_sentences_are_its_figures():
    result = make_evaluation()
    report = evaluation_report(result)
    static, best, oracle, few = report.sections[0].sentences
    assert f"is {result.static_opt}: {result.entry('static-opt').rows[ALL].simulated.speedup.value:.2f} times" in static
    usable = [entry for entry in result.policies if entry.label not in ("autoregressive", "oracle", "oracle:best")]
    fastest = max(usable, key=lambda entry: entry.rows[ALL].simulated.speedup.value)
    assert f"is {lane_name(fastest.label)}: {fastest.rows[ALL].simulated.speedup.value:.2f}x" in best
    assert "too few to decide which policy is faster" in few
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
    shipped, _ = _answers(kind, fake_pair(), tmp_path, Kept())
    assert "No results are shipped" in shipped({})["error"]
    save_result(make(), tmp_path / f"toy{kind.ending}.json")
    assert shipped({})["report"]["sections"][0]["sentences"]


def test_figures_of_other_weights_say_so(tmp_path):
    pair, setting = fake_pair(), make_evaluation().setting
    assert not is_stale(setting, pair)  # there are no weights here, so nothing is known
    pair.target = str(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert is_stale(setting, pair)
    setting.target_fingerprint = fingerprint(tmp_path)
    assert not is_stale(setting, pair)


def test_a_broken_shipped_file_is_a_sentence(tmp_path):
    (tmp_path / "toy.json").write_text("{")
    assert "not an evaluation" in _answers(EVALUATE, fake_pair(), tmp_path, Kept())[0]({})["error"]


def test_the_form_asks_for_what_the_job_knows():
    from decoding.evaluation.options import options_from_dict

    for kind in (EVALUATE, DRAFTS):
        options = options_from_dict(job_options(kind, "", "code", 12, 4, 2))
        assert (options.limit, options.clock_prompts, options.minutes, options.suite) == (12, 4, 2.0, "code")
    with pytest.raises(UserError, match="must contain a number"):
        job_options(EVALUATE, "", "code", None, 4, 2)


def test_only_recorded_results_means_no_measuring():
    from decoding.backends.recorded import RecordedBackend

    events = list(RecordedBackend().run_job("evaluate", {}, threading.Event()))
    assert events[-1].kind == "failed"


@pytest.mark.parametrize(("kind", "make"), [(EVALUATE, make_evaluation), (DRAFTS, make_drafts)])
def test_a_measurement_is_found_again_and_can_be_taken_along(tmp_path, kind, make):
    kept, result = Kept(), make()
    shipped, take = _answers(kind, fake_pair(), tmp_path, kept)
    event = Event("run", 3, "finished", {"result": json.loads(json.dumps(asdict(result)))})
    report = _finish(kind, kept, event).data["report"]
    again = shipped({"id": report["id"]})["report"]
    assert again == report and "Measured here" in again["stamp"]
    assert "error" in shipped({"id": "unknown"})  # nothing is shipped in this folder
    assert kind.from_dict(json.loads(take({"kind": "json", "id": report["id"]})["text"])) == result
    rows = list(csv.reader(io.StringIO(take({"kind": "csv", "id": report["id"]})["text"])))
    for table in kind.tables(result):
        assert [f"# {table.title}"] in rows and all(list(row) in rows for row in table.rows)
    page = take({"kind": "html", "id": report["id"]})["text"]
    assert "<script src" not in page and "plotly" in page and "<table>" in page
    assert "json, csv or html" in take({"kind": "exe", "id": report["id"]})["error"]


def test_only_the_last_results_are_kept():
    kept = Kept(most=2)
    first, second, third = (kept.add({"number": number}) for number in range(3))
    assert kept.get(first) is None and kept.get(second) == {"number": 1} and kept.get(third) == {"number": 2}
    assert kept.get(None) is None and kept.get(["x"]) is None


@pytest.mark.parametrize("pair", [one.name for one in embedded_pairs()])
def test_the_snippets_name_models_that_exist(pair):
    result, described = make_drafts(), next(one for one in embedded_pairs() if one.name == pair)
    result.setting.pair, result.drafts[0].name = pair, described.default_draft
    advice = advise(replace(result, drafts=result.drafts[:1]))
    target, model = re.fullmatch(r"vllm serve (\S+) --speculative-config '(.*)'", advice.vllm).groups()
    assert f"# target: {target}, assistant: {json.loads(model)['model']}" in advice.transformers
    assert Path(json.loads(model)["model"], "config.json").is_file()
    assert Path(target, "config.json").is_file() or described.card.endswith(target)  # not unpacked: from the Hub


def test_two_tabs_with_two_best_sls_say_which_to_take():
    drafts, evaluation = make_drafts(), make_evaluation()
    one = drafts.drafts[0]
    evaluation.setting.draft = one.name
    evaluation.static_opt = one.best_sl
    assert beside_evaluation(drafts, evaluation) == ""
    evaluation.static_opt = one.best_sl + 1
    evaluation.setting.validation_prompts, drafts.setting.validation_prompts = 160, 20
    assert f"chosen on 20: use {one.best_sl + 1}" in beside_evaluation(drafts, evaluation)
    drafts.setting.validation_prompts = 400
    assert f"use {one.best_sl}" in beside_evaluation(drafts, evaluation)
