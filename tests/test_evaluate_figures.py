"""Figures of evaluations: computed sentences, valid JSON, inert texts, a page of them."""

import json
import subprocess
import sys
from dataclasses import replace
from runpy import run_module

import pytest
import typer

from decoding.evaluation.report import tables_of
from decoding.evaluation.results import ALL, ENOUGH_FOR_INTERVAL, Figure, save_result
from decoding.lookahead.base import SL_CAP
from decoding.lookahead.static import expected_tokens
from tests.evaluations import changed, make_drafts, make_evaluation, on_clock, with_prompts
from viz.figures.answers import draw_static_sls
from viz.figures.drafts import draw_drafts, fastest, opposite_shapes
from viz.figures.drawing import LAYOUT
from viz.figures.evaluation import (
    course_sentence,
    cuts_sentence,
    draw_course,
    draw_cuts,
    draw_evaluation,
    speedups_sentence,
)
from viz.player.names import lane_name
from viz.reports.__main__ import main, whole_page
from viz.reports.report import report_of

HOSTILE = "<img src=x onerror=window.hacked=1>%{x}"


def drawings():
    return [*draw_evaluation(make_evaluation()), *draw_drafts(make_drafts())]


def test_every_figure_has_a_title_axes_and_a_sentence():
    found = drawings()
    for drawing in found:
        assert drawing.title and drawing.sentence.endswith(".")
        layout = drawing.figure.layout
        assert layout.xaxis.title.text or layout.yaxis.title.text
        assert not LAYOUT.keys() & layout.to_plotly_json().keys(), "the layout that all share would replace it"
        assert drawing.figure.data
        assert "{{" not in json.dumps(drawing.to_dict(), allow_nan=False), "a placeholder that Plotly would not fill in"
    assert len({drawing.name for drawing in found}) == len(found)


def test_bars_are_the_results_own_speedups():
    result = make_evaluation()
    bar = draw_evaluation(result)[0].figure.data[0]
    shown = dict(zip(bar.y, bar.x))
    assert shown == {lane_name(label): result.value("speedup", label) for label in result.lanes}


def timed(draft: str, sl: int, value: float, low: float, high: float, simulated: float, n: int) -> list[Figure]:
    """A static SL on the clock."""
    policy = f"static:{sl}"
    return [
        Figure(draft, policy, ALL, "clock_speedup", value, low, high, n),
        Figure(draft, policy, ALL, "clock_simulated", simulated, n=n),
    ]


def test_draft_curves_are_the_results_own_points():
    result = make_drafts()
    name = result.drafts[0].name
    simulated, predicted, clocked = draw_drafts(result)[0].figure.data[:3]
    for line, metric in ((simulated, "speedup"), (predicted, "predicted_speedup")):
        points = result.by_sl(name, metric)
        assert list(line.x) == list(range(1, 21)) == list(points)
        assert list(line.y) == [point.value for point in points.values()]
    assert len(clocked.x) == 0
    assert "Nothing was timed" in draw_drafts(result)[0].sentence

    def clock(n: int) -> list[Figure]:
        return [*timed(name, 3, 1.2, 1.1, 1.3, 1.25, n), *timed(name, 5, 0.8, 0.7, 0.9, 1.0, n)]

    drawing = draw_drafts(changed(result, *clock(6)))[0]
    assert list(drawing.figure.data[2].error_y.array) == pytest.approx([0.1, 0.1])
    assert "6 prompts that were timed, 1 of 2 points agree" in drawing.sentence
    assert f"{name} at SL 5: 0.80 on the clock, 1.00 simulated" in drawing.sentence
    slower = changed(result, *clock(6), Figure("", "autoregressive", ALL, "clock_over_costs", 1.15))
    assert "took 1.15 times what its cost curve says, so all points" in draw_drafts(slower)[0].sentence
    drawing = draw_drafts(changed(result, *clock(1)))[0]
    assert "Timed: only 1 prompt, too few to compare" in drawing.sentence


@pytest.mark.parametrize("n", [2, ENOUGH_FOR_INTERVAL])
def test_intervals_are_marked_where_there_are_any(n):
    drawn = {drawing.name: drawing.figure.data for drawing in draw_evaluation(with_prompts(make_evaluation(), n))}
    bars, points, cuts = *drawn["eval-speedup"], drawn["eval-cut"][0]
    for trace in (bars, points, cuts):
        assert len(trace.error_x.array or ()) == (len(trace.x) if n >= ENOUGH_FOR_INTERVAL else 0)


def test_the_pair_of_opposite_shapes_is_found():
    wide, deep = opposite_shapes(make_drafts().drafts)
    assert (wide.name, deep.name) == ("wide", "deep")
    assert "At about equal parameters" in draw_drafts(make_drafts())[1].sentence
    assert opposite_shapes(make_drafts().drafts[:1]) is None


@pytest.mark.parametrize(
    ("other", "said"), [(0.676, "guesses better than (68%)"), (0.678, "guesses clearly better than")]
)
def test_a_draft_that_another_guesses_better_than_by_a_hair_is_not_called_the_best(other, said):
    result = make_drafts()
    best = fastest(result).name
    rates = [Figure(one.name, "", ALL, "match_rate", 0.676 if one.name == best else other) for one in result.drafts]
    assert f"{best}, which no other {said}" in draw_drafts(changed(result, *rates))[1].sentence


def test_drafts_stand_by_cost_and_match_rate_among_curves_of_equal_speedup():
    result = make_drafts()
    costs, draft = result.setting.costs, fastest(result).name
    data = draw_drafts(result)[1].figure.data
    curves, points = [one for one in data if not one.name], [one for one in data if one.name]
    for one, point in zip(result.drafts, points, strict=True):
        assert (point.x[0], point.y[0]) == tuple(result.value(of, draft=one.name) for of in ("c", "match_rate"))
    assert len(curves) > 2
    for curve in curves:
        assert len(curve.x) == len(curve.y) > 1
        for c, match in zip(curve.x, curve.y):
            first = costs.start(1, draft) * c / costs.draft_step[draft]
            there = replace(costs, draft_step={draft: c}, first_step={draft: first})
            gains = [expected_tokens(match, n) / there.iteration(n, draft) for n in range(1, SL_CAP + 1)]
            assert costs.iteration(0, None) * max(gains) == pytest.approx(float(curve.text[-1].rstrip("×")), rel=0.005)


def test_sentences_follow_the_result():
    result = make_evaluation()
    assert "the oracle, which knows where guesses fail, reaches " in speedups_sentence(result)
    assert "Too few prompts to decide which policy is faster" in cuts_sentence(result)

    def cut(metric: str, low: float, high: float) -> Figure:
        return result.find("cut", "confidence:0.4")._replace(metric=metric, low=low, value=(low + high) / 2, high=high)

    result = on_clock(result, 40)
    worse = changed(result, cut("cut", -0.3, -0.1), cut("clock_cut", -0.03, 0.01))  # the clock does not say so
    unsure = cuts_sentence(worse).split("neither:")
    assert "over 40 simulated prompts and over 40 on the clock" in unsure[0]
    assert "Confidence 0.4" not in unsure[0] and "Confidence 0.4" in unsure[1]
    untimed = replace(
        worse, figures=[one for one in worse.figures if one.policy != "oracle:best" or "clock" not in one.metric]
    )
    assert "over 40 on the clock" in cuts_sentence(untimed)  # it cannot be timed and is not compared
    slower = cuts_sentence(changed(worse, cut("clock_cut", -0.3, -0.1))).split("slower:")[1]
    assert "Confidence 0.4" in slower.split(";")[0]


def test_one_suite_is_not_reported_twice():
    result = make_evaluation()
    several = {suite.name for suite in draw_cuts(result).figure.data}
    result.setting.prompts = {"code": 6}
    assert {suite.name for suite in draw_cuts(result).figure.data} == {ALL} < several
    assert [line.name for line in draw_course(result).figure.data] == [ALL]
    assert not any("by suite" in table.title for table in tables_of(result))


def test_every_suite_is_drawn():
    result, suites = make_evaluation(), [f"suite-{number}" for number in range(7)]
    result.setting.prompts = dict.fromkeys(suites, 12)
    of_all = [one for one in result.figures if one.suite == ALL]
    more = [one._replace(suite=suite) for suite in suites for one in of_all]
    for draw in (draw_cuts, draw_course):
        drawn = draw(replace(result, figures=[*of_all, *more])).figure.data
        assert [trace.name for trace in drawn] == [ALL, *suites]


def test_the_longest_fixed_sl_is_not_compared_with_itself():
    result = make_evaluation()
    assert "; SL 20 would make it " in draw_static_sls(result).sentence
    result.lanes["static-opt"] = "static:20"
    sentence = draw_static_sls(result).sentence
    assert sentence.startswith("SL 20, chosen on ") and sentence.count("SL 20") == 1


def test_names_from_a_result_are_inert():
    result = make_drafts()
    name = result.drafts[0].name
    hostile = replace(
        result,
        drafts=[replace(result.drafts[0], name=HOSTILE), *result.drafts[1:]],
        figures=[one._replace(draft=HOSTILE) if one.draft == name else one for one in result.figures],
    )
    for drawing in draw_drafts(hostile):
        text = json.dumps(drawing.figure.to_plotly_json())
        assert "<img" not in text and "%{x}>" not in text
    assert "<img" not in whole_page("", report_of(hostile).content(""))


def test_a_command_writes_pages_that_need_no_other_file(tmp_path, capsys, monkeypatch):
    results = {"result.json": make_evaluation(), "drafts-result.json": make_drafts(), "tiny.json": make_evaluation()}
    for name, result in results.items():
        save_result(result, tmp_path / name)
    monkeypatch.setattr(sys, "argv", ["reports", *(str(tmp_path / name) for name in results)])
    with pytest.raises(SystemExit) as ended:
        run_module("viz.reports", run_name="__main__")
    assert ended.value.code == 0
    pages = {"report.html", "drafts-report.html", "tiny.html"}
    assert {path.name for path in tmp_path.iterdir()} == {*results, *pages}
    for name in pages:
        head, _, body = (tmp_path / name).read_text().partition("<body>")
        assert "plotly.js v" in head and "<script src" not in head
        assert len(body) < 300_000 and "https://" not in body and "var(--" not in body
    with pytest.raises(typer.Exit):
        main([tmp_path / "none.json"])
    assert "Cannot read" in capsys.readouterr().err


def test_decoding_imports_no_page_and_no_model_for_them():
    code = "import sys, decoding.evaluation.parts, decoding.cli.evaluate, decoding.cli.whatif\n"
    code += "print([m for m in ('plotly', 'gradio', 'torch', 'viz') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "course, shape",
    [
        ([3.5] * 3 + [1.3] * 4 + [3.4] * 3, "sooner in the middle of a text: 3.5 in a row in the first third, 1.3 in"),
        ([1.3] * 3 + [3.0] * 4 + [1.3] * 3, "longest in the middle"),
        ([1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0], "longer towards the end"),
        ([3.0, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0], "longer at the beginning"),
        ([3.0, 1.0, 2.0] * 3, "goes up and down along the text, between 1.0 and 3.0"),
        ([2.0, 2.1] * 5, "hardly changes"),
    ],
)
def test_the_course_of_the_oracle_is_called_what_it_is(course, shape):
    result = on_clock(make_evaluation(), 40)
    given = [one for one in result.figures if not one.metric.startswith("oracle_sl@")]
    given += [Figure("shallow", "", ALL, f"oracle_sl@{place}", value) for place, value in enumerate(course)]
    result.setting.prompts = {"code": 40}
    assert shape in course_sentence(replace(result, figures=given))
    result.setting.prompts = {"code": 4}
    assert course_sentence(replace(result, figures=given)).startswith("4 prompts: too few to say")
