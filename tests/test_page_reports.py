"""The content of the Evaluation and Drafts tabs."""

import csv
import html
import io
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from decoding.errors import UserError
from decoding.evaluation.advice import recommend
from decoding.evaluation.options import options_from_dict
from decoding.evaluation.report import setting_lines, tables_of
from decoding.evaluation.results import EvaluationResult, result_from_dict, save_result
from decoding.evaluation.table import Cell, Table
from decoding.records.events import Event
from decoding.records.pairs import PairDescription, embedded_pairs
from decoding.records.run_file import to_plain
from decoding.records.weights import SOURCE_FILE, GgufRecord, fingerprint, whole_draft
from viz.figures.answers import CAUSES
from viz.figures.evaluation import fastest
from viz.player.names import lane_name
from viz.reports.report import PAPERS, DraftsReport, EvaluationReport, beside_policy, beside_sl, is_stale, with_names
from viz.reports.tab import MOST_KEPT, Kept, _answers, _finish, job_options

from .evaluations import make_drafts, make_evaluation, make_papers, on_clock
from .fakes import fake_pair

KINDS = [(EvaluationReport, make_evaluation), (DraftsReport, make_drafts)]


@pytest.fixture
def tab(tmp_path):
    """tab({file: its result or text}, ...): the two functions of a tab over a folder with these files."""

    def answers(files, kind=EvaluationReport, pair=None, kept=None):
        for name, content in files.items():
            if isinstance(content, str):
                (tmp_path / name).write_text(content)
            else:
                save_result(content, tmp_path / name)
        return _answers(kind, pair or fake_pair(), tmp_path, kept or Kept(MOST_KEPT))

    return answers


def test_the_evaluation_s_sentences_are_its_figures():
    result = make_evaluation()
    few, best, oracle = EvaluationReport(result).sentences()
    usable = [label for label in result.lanes if label not in ("autoregressive", "oracle", "oracle:best")]
    fastest = max(usable, key=lambda label: result.value("speedup", label))
    assert f"{lane_name(fastest)}: {result.value('speedup', fastest):.2f} times as fast as plain decoding" in best
    assert "too few to decide which policy is faster" in few
    assert f"reaches {result.value('speedup', 'oracle'):.2f}" in oracle


def test_the_drafts_advice_comes_with_settings_to_copy():
    result = make_drafts()
    first, advice = DraftsReport(result).content("x")["sections"][0], recommend(result)
    assert [text for _, text in first["code"]] == [advice.transformers, advice.vllm]
    assert first["title"] == f"Which draft and which SL are best on {result.setting.machine.where}?"
    assert first["sentences"] == advice.sentences


@pytest.mark.parametrize(("kind", "make"), KINDS)
def test_the_tab_opens_with_the_shipped_file(tmp_path, tab, kind, make):
    shipped, _ = tab({}, kind)
    assert "No results are shipped" in shipped({})["error"]
    save_result(make(), kind.shipped_file("toy", tmp_path))
    assert shipped({})["report"]["sections"][0]["sentences"]


def test_the_evaluation_begins_with_three_answers_and_shows_all_else_folded():
    result = make_evaluation()
    report = EvaluationReport(result)
    sections = report.content("Shipped results")["sections"]
    assert sections[0]["sentences"] == report.sentences()
    assert [section["kind"] for section in sections] == ["answer"] * 3 + ["folded"] * (len(sections) - 3)
    _, length, losses = sections[:3]
    chosen = f"SL {result.static_opt}, chosen on {result.setting.validation_prompts} validation prompts, makes"
    assert length["sentences"][0].startswith(
        f"{chosen} decoding {result.value('speedup', 'static-opt'):.2f} times as fast"
    )
    best = fastest(result)
    without = {words: result.value(metric, best) for metric, words in CAUSES.items()}
    cause = min(without, key=without.__getitem__)
    reached = result.value("speedup", best) * result.value("as_it_is_s", best) / without[cause]
    assert f"It would be {reached:.2f} times as fast {cause}" in losses["sentences"][0]
    bars = losses["drawings"][0]["figure"]["data"][0]
    names = [name.replace("<br>", " ") for name in bars["y"]]
    assert dict(zip(names, bars["x"]))[cause] == pytest.approx(reached)
    shown = {drawing["name"] for section in sections for drawing in section["drawings"]}
    assert shown == {drawing.name for drawing in report.drawings()} | {"eval-static", "eval-losses"}
    tables = sorted(table["title"] for section in sections for table in section["tables"])
    assert tables == sorted(table.title for table in tables_of(result))
    without = [one for one in result.figures if (one.policy, one.metric) != (best, "as_it_is_s")]  # as of a tree
    third = EvaluationReport(replace(result, figures=without)).content("")["sections"][2]
    assert third["title"].startswith("What holds ") and third["title"] != losses["title"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            (0.058, 0.047, 0.069),
            "5.8% (4.7 to 6.9%) less time per token than SL {chosen}, the best static SL on validation",
        ),
        ((-0.015, -0.034, 0.004), "1.5% (-0.4 to 3.4%) more time per token"),
        ((-0.015, None, None), "1.5% more time per token"),
    ],
)
def test_the_sentence_on_the_best_policy_says_less_and_more(found, said):
    result = make_evaluation()
    value, low, high = found
    cut = result.need("cut", fastest(result))._replace(value=value, low=low, high=high, n=40)
    clocked = result.need("speedup", fastest(result))._replace(metric="clock_speedup", value=1.234)
    sentences = EvaluationReport(replace(result, figures=[*result.figures, cut, clocked])).sentences()
    assert said.format(chosen=result.static_opt) in " ".join(sentences)
    assert ", simulated, and 1.23 times on the clock" in " ".join(sentences)


def titled(report: dict, title: str) -> dict:
    return next(section for section in report["sections"] if section["title"] == title)


def papers_result() -> EvaluationResult:
    """The synthetic evaluation as if on two of the papers' data sets, clocked in part."""
    result = make_papers({"code": "humaneval", "prose": "gsm8k", "tests": "mtbench"})
    result.setting.pair = "toy"
    timed = [one for one in on_clock(result, 3).figures if "clock_" in one.metric]
    return replace(result, figures=[*result.figures, *timed])


def test_without_figures_on_the_papers_data_sets_the_tab_says_how_to_measure_them(tab):
    shipped, take = tab({"toy.json": make_evaluation()})
    section = titled(shipped({})["report"], PAPERS)
    assert section["tables"] == [] and section["kind"] == "folded"
    assert section["sentences"][0].endswith("python -m decoding evaluate --suite papers --pair toy --ship")
    assert not shipped({})["report"]["papers"] and "no figures" in take({"kind": "papers"})["error"]


def test_figures_on_the_papers_data_sets_stand_beside_the_papers_own_and_in_the_exports(tab):
    own, evaluation = papers_result(), make_evaluation()
    own.setting.engine, evaluation.setting.engine = "of last year", "of today"
    shipped, take = tab({"toy.json": evaluation, "toy-papers.json": own})
    report = shipped({})["report"]
    section = titled(report, PAPERS)
    assert report["papers"] and section["sentences"] == setting_lines(own.setting)
    assert f"on {evaluation.setting.machine.where} · engine of today · bfloat16" in report["stamp"]
    made = f"2 threads, engine of last year, on {own.setting.machine.where}; 2026-11-21"
    assert made in section["sentences"][0] and "humaneval 4, gsm8k 4, mtbench 4" in section["sentences"][1]
    assert any(table["note"].startswith("On the clock: 3 prompts") for table in section["tables"])
    first = section["tables"][0]
    texts = [[text for text, _ in row] for row in first["rows"]]
    disco = next(row for row in texts if row[0] == "humaneval" and row[1].startswith("DISCO"))
    assert "1.84×" in disco and "A100" in disco[2] and "differ in models, hardware" in first["note"]
    here = next(row for row in texts if row[0] == "humaneval" and row[1].startswith("ours, simulated, "))
    timing = own.find("speedup", "static-opt", "humaneval")
    assert f"{timing.value:.2f}×" in here and here[1].endswith(f", {timing.n} prompts")
    assert result_from_dict(json.loads(take({"kind": "papers"})["text"])) == own
    suites = {row["suite"] for row in csv.DictReader(io.StringIO(take({"kind": "csv"})["text"]))}
    assert suites == {"all", *own.setting.prompts, *make_evaluation().setting.prompts, "CNN-DM", "Alpaca"}
    page = take({"kind": "html"})["text"]
    assert all(html.escape(table["title"]) in page for table in section["tables"])


def test_a_broken_file_of_the_papers_data_sets_is_a_sentence_beside_the_other_figures(tab):
    report = tab({"toy.json": make_evaluation(), "toy-papers.json": "{"})[0]({})["report"]
    assert "toy-papers.json is not an evaluation" in titled(report, PAPERS)["sentences"][0]
    assert not report["papers"] and titled(report, "What does each threshold trade?")["tables"]


def test_figures_on_the_papers_data_sets_of_other_weights_say_so(tmp_path, tab):
    files = {"toy.json": make_evaluation(), "toy-papers.json": make_evaluation(), "config.json": "{}"}
    report = tab(files, pair=replace(fake_pair(), target=str(tmp_path)))[0]({})["report"]
    assert "other than the installed ones" in " ".join(titled(report, PAPERS)["sentences"])


def test_tables_call_lanes_by_their_names_with_a_number_that_was_chosen_and_drafts_by_their_own():
    rows = [[Cell("static-opt (static:3)"), Cell("1.5")], [Cell("disco (disco:0.6)"), Cell("1.6")]]
    policies = Table("", "", ["policy", "costtree"], rows)
    drafts = Table("", "", ["draft", "best policy"], [[Cell("early-exit"), Cell("early-exit/static:2")]])
    tables = with_names([policies, drafts])
    assert [table.columns for table in tables] == [["policy", "Cost tree"], ["draft", "best policy"]]
    shown = [[[one.text for one in row] for row in table.rows] for table in tables]
    assert shown == [
        [["static-opt (Static 3)", "1.5"], ["DISCO 0.6", "1.6"]],
        [["early-exit", "Static 2 · early-exit"]],
    ]


@pytest.mark.parametrize("make", [make_evaluation, make_drafts])
def test_figures_of_other_weights_say_so(tmp_path, make):
    """Of any draft in a table of drafts, too; and of a target that is a recorded file."""
    result = make()
    assert not is_stale(result, fake_pair())  # there are no weights here, so nothing is known
    names = [draft.name for draft in result.drafts] or [result.setting.draft]
    pair = replace(fake_pair(), target=str(tmp_path), drafts={name: str(tmp_path / name) for name in names})
    record = GgufRecord("target", "target.gguf", "0" * 64, "Q8_0")
    (tmp_path / SOURCE_FILE).write_text(json.dumps(asdict(record)))
    for name, folder in pair.drafts.items():
        Path(folder).mkdir()
        Path(folder, "config.json").write_text(name)
    made_with = {name: fingerprint(folder) for name, folder in pair.drafts.items()}
    setting = replace(
        result.setting, target_fingerprint=record.mark, draft=names[0], draft_fingerprint=made_with[names[0]]
    )
    drafts = [replace(draft, fingerprint=made_with[draft.name]) for draft in result.drafts]
    result = replace(result, setting=setting, drafts=drafts)
    assert not is_stale(result, pair)
    for folder in pair.drafts.values():
        new = Path(folder, "model.safetensors")
        new.write_bytes(b"new")
        assert is_stale(result, pair)
        new.unlink()
    (tmp_path / SOURCE_FILE).write_text(json.dumps(asdict(replace(record, sha256="1" * 64))))
    assert is_stale(result, pair)


def test_a_broken_shipped_file_is_a_sentence(tab):
    assert "not an evaluation" in tab({"toy.json": "{"})[0]({})["error"]
    drafts = make_drafts()
    drafts.setting.pair = "toy"  # whose evaluation is the broken file
    assert "report" in tab({"toy-drafts.json": drafts}, DraftsReport)[0]({})


def test_the_form_asks_for_what_the_job_knows():
    for kind in (EvaluationReport, DraftsReport):
        options = options_from_dict(job_options(kind, "", "code", 12, 4, 2))
        assert (options.limit, options.clock_prompts, options.minutes, options.suite) == (12, 4, 2.0, "code")


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ((None, 4, 2), "test prompts must be a whole number from 1 to 1,000: it is empty."),
        ((-3, 4, 2), "test prompts must be a whole number from 1 to 1,000, not -3."),
        ((1e9, 4, 2), "test prompts must be a whole number from 1 to 1,000, not 1000000000."),
        ((2.5, 4, 2), "test prompts must be a whole number from 1 to 1,000, not 2.5."),
        ((12, 0.5, 2), "prompts on the clock must be a whole number from 0 to 1,000, not 0.5."),
        ((12, 4, 61), "Minutes on the clock must be a number from 0 to 60, not 61."),
    ],
)
def test_the_form_refuses_a_number_with_the_bounds_and_what_was_typed(numbers, sentence):
    with pytest.raises(UserError) as refused:
        job_options(EvaluationReport, "", "code", *numbers)
    assert str(refused.value).endswith(sentence)


@pytest.mark.parametrize(("kind", "make"), KINDS)
def test_a_measurement_is_found_again_and_can_be_taken_along(tab, kind, make):
    kept, result = Kept(MOST_KEPT), make()
    shipped, take = tab({}, kind, kept=kept)
    event = Event("run", 3, "finished", {"result": json.loads(json.dumps(to_plain(result)))})
    report = _finish(kind, kept, event).data["report"]
    again = shipped({"id": report["id"]})["report"]
    assert again == report and "Measured here" in again["stamp"]
    assert "No results are shipped" in shipped({"id": "unknown"})["error"]
    assert result_from_dict(json.loads(take({"kind": "json", "id": report["id"]})["text"])) == result
    rows = list(csv.DictReader(io.StringIO(take({"kind": "csv", "id": report["id"]})["text"])))
    assert [float(row["value"]) for row in rows] == [one.value for one in result.figures]
    page = take({"kind": "html", "id": report["id"]})["text"]
    assert "<script src" not in page and "plotly" in page and "<table>" in page
    assert "json, csv or html" in take({"kind": "exe", "id": report["id"]})["error"]


def said(content: dict) -> list[str]:
    """All that a tab says in words, in its order."""
    words = [content["stamp"]]
    for section in content["sections"]:
        words += [section["title"], *section["sentences"], *(text for snippet in section["code"] for text in snippet)]
        words += [table[name] for table in section["tables"] for name in ("title", "note")]
        words += [drawing[name] for drawing in section["drawings"] for name in ("title", "sentence")]
    return words


@pytest.mark.parametrize("kind", [EvaluationReport, DraftsReport])
def test_the_saved_page_says_what_the_tab_says(tab, kind):
    evaluation, drafts = make_evaluation(), make_drafts()
    drafts.setting.pair, same = "toy", drafts.drafts[0]
    evaluation.setting.draft, evaluation.lanes["static-opt"] = same.name, f"static:{same.best_sl + 1}"
    evaluation.figures = [one._replace(draft=same.name) for one in evaluation.figures]
    shipped, take = tab({"toy.json": evaluation, "toy-drafts.json": drafts, "toy-papers.json": papers_result()}, kind)
    words, page = said(shipped({})["report"]), take({"kind": "html"})["text"]
    wanted = "too few to decide" if kind is EvaluationReport else "The Evaluation tab gives"
    assert any(wanted in text for text in words)
    body = page.partition("<body>")[2]
    for text in filter(None, words):
        _, found, body = body.partition(html.escape(text))
        assert found, text


def with_draft(pair: PairDescription) -> EvaluationResult:
    """A synthetic draft in the place of the one of ``pair`` that other engines know."""
    result, name = make_drafts(), pair.text_draft
    one = result.drafts[0]
    result.setting.pair = pair.name
    drafts = [replace(one, name=name, best_lane=one.best_lane.replace(one.name, name))]
    return replace(
        result, drafts=drafts, figures=[f._replace(draft=name) for f in result.figures if f.draft == one.name]
    )


@pytest.mark.parametrize("anywhere", [False, True])
@pytest.mark.parametrize("pair", embedded_pairs(), ids=lambda pair: pair.name)
def test_the_snippets_name_models_that_exist(pair, anywhere):
    advice = recommend(with_draft(pair), anywhere)
    target, model = re.fullmatch(r"vllm serve (\S+) --speculative-config '(.*)'", advice.vllm).groups()
    draft = json.loads(model)["model"]
    assert f"# target: {target}, assistant: {draft}" in advice.transformers
    assert Path(draft, "config.json").is_file()
    assert Path(target, "config.json").is_file() or pair.card.endswith(target)  # not unpacked: from the Hub
    whole = any(Path(draft).glob("model*.safetensors"))  # what transformers loads
    assert whole or "lacks the weights that the draft shares" in advice.sentences[-1]
    if anywhere:
        assert not Path(target).is_absolute() and not Path(draft).is_absolute()


def test_the_snippets_name_the_whole_draft_once_it_was_made(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECULOSCOPE_CACHE", str(tmp_path))
    pair = next(one for one in embedded_pairs() if "three-layers" in one.drafts)
    whole = whole_draft(Path(pair.drafts[pair.text_draft]), fingerprint(pair.target))
    whole.mkdir(parents=True)
    (whole / "model.safetensors").touch()
    advice = recommend(with_draft(pair))
    assert str(whole) in advice.vllm and "lacks the weights" not in advice.sentences[-1]


def test_two_tabs_with_two_best_sls_say_which_to_take():
    drafts, evaluation = make_drafts(), make_evaluation()
    one = drafts.drafts[0]
    evaluation.setting.draft = one.name
    evaluation.lanes["static-opt"] = f"static:{one.best_sl}"
    assert beside_sl(drafts, evaluation) == ""
    evaluation.lanes["static-opt"] = f"static:{one.best_sl + 1}"
    evaluation.setting.validation_prompts, drafts.setting.validation_prompts = 160, 20
    assert f"chosen on 20: use {one.best_sl + 1}" in beside_sl(drafts, evaluation)
    drafts.setting.validation_prompts = 400
    assert f"use {one.best_sl}" in beside_sl(drafts, evaluation)
    evaluation.setting.target_dtype = "float16"
    said = beside_sl(drafts, evaluation)
    assert "in float16; here, in" in said and "of the format that you run" in said


def test_two_tabs_with_two_best_policies_say_so():
    drafts, evaluation = make_drafts(), make_evaluation()
    one, best = drafts.drafts[0], fastest(evaluation)
    one.name, one.best_lane = evaluation.setting.draft, f"shallow/{best}"
    assert best and beside_policy(drafts, evaluation) == ""
    one.best_lane = "shallow/heuristic"
    there, here = (evaluation.value("speedup", policy) for policy in (best, "heuristic"))
    said = beside_policy(drafts, evaluation)
    assert f"{there:.2f}× over its 12 test prompts, where Heuristic gives {here:.2f}×; their intervals overlap." in said
    evaluation.lanes["heuristic"], one.best_lane = "disco:0.6", "shallow/disco:0.6"  # as where a number is chosen
    assert beside_policy(drafts, evaluation) == said.replace("Heuristic", "DISCO 0.6")
    evaluation.lanes[best], one.best_lane = f"{best}:9", f"shallow/{best}:9"
    assert beside_policy(drafts, evaluation) == ""
    one.best_lane = "shallow/disco"  # which the evaluation does not have
    assert beside_policy(drafts, evaluation) == ""
