"""What evaluations report: a recommendation, also for other engines; figures beside the papers'; what is shipped."""

import json
import shlex
from dataclasses import replace

import pytest

from decoding.errors import UserError
from decoding.evaluation import results
from decoding.evaluation.advice import recommend, settings_titles, transformers_settings, vllm_settings
from decoding.evaluation.published import AHEAD_TITLE, COLUMNS, ELSEWHERE, PUBLISHED, TITLE, papers_tables
from decoding.evaluation.report import markdown, ship, tables_of, to_csv
from decoding.evaluation.results import SHIPPED, EvaluationResult, load_result, result_name, shipped_name
from decoding.lookahead.lanes import parse_lane
from decoding.records.pairs import PairDescription, embedded_pairs
from tests.evaluations import changed, make_drafts, make_evaluation, make_papers
from viz.player.names import lane_name
from viz.reports.report import is_stale


def test_the_recommendation_is_the_fastest_draft_and_is_written_out_for_other_engines():
    result = make_drafts()
    advice = recommend(result)
    best = max(result.drafts, key=lambda draft: result.value("speedup", draft.best_policy, draft=draft.name))
    assert advice.draft == best.name and lane_name(best.best_lane).split(" · ")[0] in advice.sentences[0]
    config = json.loads(advice.vllm.partition("--speculative-config ")[2].strip("'"))
    assert config["num_speculative_tokens"] == best.best_sl


def test_an_engine_that_cannot_read_states_gets_the_draft_that_gains_most_at_a_fixed_sl():
    result = load_result(SHIPPED / "smollm2-135m-drafts.json")
    advice = recommend(result, anywhere=True)
    best = {draft.name: result.by_sl(draft.name)[draft.best_sl].value for draft in result.drafts}
    read = [name for name in best if name not in ("feature", "heads", "block")]
    theirs = max(read, key=best.__getitem__)
    assert advice.draft == "feature" and f"settings below are for {theirs}." in " ".join(advice.sentences)
    assert f"drafts/{theirs}" in advice.vllm and f"drafts/{theirs}" in advice.transformers
    assert f"at a static SL: {best[theirs]:.2f}×" in " ".join(advice.sentences)
    assert advice.titles == (f"{NEAREST} transformers", f"{NEAREST} vLLM")


def test_drafts_that_are_as_fast_as_the_next_best_are_named():
    result = load_result(SHIPPED / "smollm2-135m-drafts.json")
    gains = {draft.name: result.need("speedup", draft.best_policy, draft=draft.name) for draft in result.drafts}
    _, second, third, *others = sorted(gains, key=lambda name: gains[name].value, reverse=True)
    apart = changed(result, *(gains[name]._replace(value=0.9 * gains[name].value) for name in (third, *others)))
    assert not any(sentence.startswith("As fast") for sentence in recommend(apart).sentences)
    as_printed = round(gains[second].value, 2)
    alike = changed(apart, gains[third]._replace(value=as_printed))
    ahead, behind = (third, second) if as_printed > gains[second].value else (second, third)
    sentences = recommend(alike).sentences
    assert sentences[1].startswith(f"The next best is {ahead} ")
    assert sentences[2] == f"As fast, each with its best policy: {behind}."


SAME, NEAREST = "The same in", "The nearest in"


@pytest.mark.parametrize(
    "lane, titles, lines",
    [
        ("x/static:7", (SAME, SAME), ["num_assistant_tokens = 7", '"constant"', "threshold = 0\n"]),
        ("x/heuristic", (SAME, NEAREST), ["num_assistant_tokens = 5", '"heuristic_transient"', "threshold = 0\n"]),
        ("x/confidence:0.3", (NEAREST, NEAREST), ["= 20\n", '"constant"', "threshold = 0.3\n", "moves the threshold"]),
        ("x/disco", (NEAREST, NEAREST), ["has no policy DISCO", "num_assistant_tokens = 7"]),
    ],
)
def test_settings_for_transformers_are_called_the_same_only_if_it_has_the_policy(lane, titles, lines):
    draft = replace(make_drafts().drafts[0], name="x", best_sl=7)
    text = transformers_settings(draft, parse_lane(lane), "source", "target")
    for line in lines:
        assert line in text
    compile(text, "settings", "exec")
    engines = zip(titles, ("transformers", "vLLM"))
    assert settings_titles(draft, parse_lane(lane), True) == tuple(f"{title} {engine}" for title, engine in engines)


def test_settings_for_prompt_lookup():
    draft = replace(make_drafts().drafts[0], name="ngram", best_sl=9)
    text = transformers_settings(draft, parse_lane("ngram/static:9"), "", "t")
    assert "prompt_lookup_num_tokens=9, max_matching_ngram_size=3" in text
    assert '"method": "ngram"' in vllm_settings(draft, "", "t")


def test_a_path_is_one_word_of_the_command():
    text = vllm_settings(make_drafts().drafts[0], "draft", "the teacher's models/x")
    assert shlex.split(text)[:3] == ["vllm", "serve", "the teacher's models/x"]


def test_a_losing_ladder_is_called_losing():
    assert "No draft gains anything" in recommend(make_drafts(c=4.0)).sentences[0]


def test_the_best_sl_in_hindsight_is_told_from_the_one_that_validation_chose():
    result = make_drafts()
    name = recommend(result).draft
    speedups = {sl: one.value for sl, one in result.by_sl(name).items()}
    peak = max(speedups, key=speedups.__getitem__)
    drafts = [replace(draft, best_sl=peak + 1) for draft in result.drafts]
    said = " ".join(recommend(replace(result, drafts=drafts)).sentences)
    assert f"in hindsight, on the test prompts, {name} is fastest at a static SL of {peak}" in said
    assert f"SL {peak + 1}, which validation chose, reaches {speedups[peak + 1]:.2f}×" in said


# -- measured figures compared with the papers'


def test_without_a_data_set_of_the_papers_there_is_no_table():
    assert papers_tables(make_evaluation()) == []
    assert TITLE not in [table.title for table in tables_of(make_evaluation())]


def rows_of(result, title: str = TITLE) -> list[list[str]]:
    table = next(one for one in tables_of(result) if one.title == title)
    assert all(len(row) == len(table.columns) for row in table.rows)
    return [[cell.text for cell in row] for row in table.rows]


def test_each_data_set_has_the_papers_rows_and_ours():
    sources = [
        (row[0], row[1].rpartition(", ")[0] or row[1])
        for row in rows_of(make_papers({"code": "humaneval", "prose": "gsm8k"}))
    ]
    assert all(sources.count((suite, "ours, simulated")) == 1 for suite in ("humaneval", "gsm8k"))
    assert len([one for one in sources if one[0] in ("humaneval", "gsm8k")]) == 5  # two papers, one, and two of ours
    assert {one[0] for one in sources} == {"humaneval", "gsm8k", *ELSEWHERE}


def own_figures(result, how: str = "ours, simulated") -> dict[str, str]:
    """By policy, the cells of our row; and its "source"."""
    row = next(row for row in rows_of(result) if row[1].startswith(how))
    return {"source": row[1], **dict(zip(COLUMNS, row[3:], strict=True))}


def test_our_figures_are_the_result_s():
    result = make_papers({"code": "mbpp"})
    own = own_figures(result)
    opt = result.find("speedup", "static-opt", "mbpp")
    assert own["static-opt"] == f"{opt.value:.2f}×" and opt.n == 4  # too few for an interval
    assert own["source"] == f"ours, simulated, {opt.n} prompts"
    assert own["disco"] == ""  # no such policy was evaluated


def test_the_column_of_sl_5_shows_no_other_static_sl():
    result = make_papers({"code": "mbpp"})
    five = own_figures(result)["static:5"]
    three = [one._replace(policy="static:3", value=9.0) for one in result.figures if one.policy == "static:5"]
    result.figures += three
    result.lanes = {"static:3": "static:3", **result.lanes}
    assert own_figures(result)["static:5"] == five
    del result.lanes["static:5"]
    assert own_figures(result)["static:5"] == ""


def test_clocked_figures_have_a_row_of_their_own():
    result = make_papers({"code": "mbpp"})
    assert not any(row[1].startswith("ours, on the clock") for row in rows_of(result))
    oracle = result.find("speedup", "oracle", "mbpp")
    timed = changed(result, oracle._replace(metric="clock_speedup", n=3))
    assert own_figures(timed, "ours, on the clock")["source"] == "ours, on the clock, 3 prompts"
    assert own_figures(timed, "ours, on the clock")["static-opt"] == "" and own_figures(timed)["static-opt"]


def test_how_far_a_policy_is_ahead_of_the_best_static_sl_there_and_here():
    result = make_papers({"code": "mbpp"})
    result = changed(result, result.find("cut", "oracle", "mbpp")._replace(low=0.1, high=0.6, n=13))
    rows = {(row[0], row[1].partition(",")[0]): row[2:] for row in rows_of(result, AHEAD_TITLE)}
    assert rows["mbpp", "DISCO"] == ["+10.9%", "", "+28.1%"]  # 1 - 1.64 / 1.84, 1 - 1.64 / 2.28
    assert rows["mbpp", "ours"][-1] == f"{result.value('cut', 'oracle', 'mbpp'):+.1%} [+10.0%, +60.0%]"


def test_the_papers_figures_are_in_the_long_table_too():
    lines = to_csv([make_papers({"code": "mbpp"})]).splitlines()
    assert any("DISCO" in line and ",disco,mbpp," in line and ",1.84," in line for line in lines)


def test_published_figures_name_their_source():
    assert all("arXiv" in row.source and row.setting and row.speedups for row in PUBLISHED)


# -- the shipped evaluations belong to the shipped weights: after a change of the weights they must be repeated

STALE = "repeat it with python -m decoding evaluate --ship (and --drafts all)"


def names_of(pair: PairDescription) -> list[str]:
    return [result_name(pair.name, drafts, papers) for drafts in (False, True) for papers in (False, True)]


def shipped() -> list[tuple[PairDescription, EvaluationResult]]:
    places = ((pair, SHIPPED / name) for pair in embedded_pairs() for name in names_of(pair))
    return [(pair, load_result(path)) for pair, path in places if path.exists()]


def test_shipped_results_were_made_with_the_shipped_weights():
    for pair, result in shipped():
        assert not is_stale(result, pair), f"{shipped_name(result)} is stale: {STALE}"
        named = {name for name in pair.drafts if not pair.kind_of(name).purpose}
        assert not result.drafts or named <= {draft.name for draft in result.drafts}, f"it lacks drafts: {STALE}"


def test_shipped_reports_are_those_of_the_shipped_results():
    for _, result in shipped():
        written = (SHIPPED / shipped_name(result)).with_suffix(".md").read_text(encoding="utf-8")
        assert written == markdown(result), f"{shipped_name(result)}: write its report with evaluate --result --ship"


def test_every_shipped_file_belongs_to_a_pair():
    names = {name for pair in embedded_pairs() for name in names_of(pair)}
    assert {path.name for path in SHIPPED.glob("*.json")} <= names


# -- their files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, suites, name",
    [
        (make_evaluation, {"code": 2}, "synthetic"),
        (make_drafts, {"code": 2}, "synthetic-drafts"),
        (make_evaluation, {"humaneval": 2, "gsm8k": 1}, "synthetic-papers"),
    ],
)
def test_shipped_results_are_named_after_their_pair_and_data_sets(tmp_path, make, suites, name):
    result = make()
    result.setting.prompts = suites
    path, written = ship(result, tmp_path)
    assert (path.name, written.name) == (f"{name}.json", f"{name}.md")
    assert load_result(path) == result


@pytest.mark.parametrize("text", ["", "null", "[1]", "[" * 100_000, '{"schema": "speculoscope.evaluation/2"}', "NaN"])
def test_damaged_results_are_refused_in_a_sentence(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UserError, match="not an evaluation"):
        load_result(path)


@pytest.mark.parametrize(
    "make, part", [(make_evaluation, {"lanes": {"static-opt": "x"}}), (make_drafts, {"drafts": 0})]
)
def test_a_result_that_no_report_could_show_is_refused(tmp_path, make, part):
    """A best static SL that is no number; a draft without a name."""
    ship(make(), tmp_path)
    path = next(tmp_path.glob("*.json"))
    data = json.loads(path.read_text())
    if "drafts" in part:
        part = {"drafts": [data["drafts"][0] | {"name": ""}]}
    path.write_text(json.dumps(data | part))
    with pytest.raises(UserError, match="not an evaluation"):
        load_result(path)


def test_plain_data_that_is_no_result_is_refused():
    with pytest.raises(UserError, match="not an evaluation of this program's version"):
        results.result_from_dict({"figures": float("nan")})


def test_an_unwritable_place_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write"):
        results.save_result(make_evaluation(), tmp_path / "file" / "x.json")
