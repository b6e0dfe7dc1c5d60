"""Figures of evaluations: computed sentences, valid JSON, inert texts, the library next to the page."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import typer

from decoding.evaluation.report import evaluation_tables
from decoding.evaluation.results import ALL, Clocked, Interval, save_result
from tests.evaluations import make_drafts, make_evaluation
from viz.figures.drafts import draw_drafts, opposite_shapes
from viz.figures.evaluation import draw_evaluation
from viz.player.names import lane_name
from viz.reports.__main__ import main
from viz.reports.html import LIBRARY, write_html

HOSTILE = "<img src=x onerror=window.hacked=1>%{x}"


def drawings():
    return [*draw_evaluation(make_evaluation()), *draw_drafts(make_drafts())]


def test_every_figure_has_a_title_axes_and_a_sentence():
    for drawing in drawings():
        assert drawing.title and drawing.sentence.endswith(".")
        layout = drawing.figure.layout
        assert layout.xaxis.title.text or layout.yaxis.title.text
        assert drawing.figure.data
        json.dumps(drawing.to_dict(), allow_nan=False)
    assert len({drawing.name for drawing in drawings()}) == len(drawings())


def test_bars_are_the_results_own_speedups():
    result = make_evaluation()
    bar = draw_evaluation(result)[0].figure.data[0]
    shown = dict(zip(bar.y, bar.x))
    for entry in result.policies:
        assert shown[lane_name(entry.label)] == entry.rows[ALL].simulated.speedup.value


def test_draft_curves_are_the_results_own_points():
    result = make_drafts()
    simulated, predicted, clocked = draw_drafts(result)[0].figure.data[:3]
    points = result.drafts[0].by_sl
    assert list(simulated.y) == [point.simulated for point in points]
    assert list(predicted.y) == [point.predicted for point in points]
    assert len(clocked.x) == 0
    assert "Nothing was timed" in draw_drafts(result)[0].sentence
    points[2].clock, points[2].clocked = 1.2, Clocked(6, Interval(1.2, 1.1, 1.3), 1.25)
    points[4].clock, points[4].clocked = 0.8, Clocked(6, Interval(0.8, 0.7, 0.9), 1.0)
    drawing = draw_drafts(result)[0]
    assert list(drawing.figure.data[2].error_y.array) == pytest.approx([0.1, 0.1])
    assert "6 prompts that were timed, 1 of 2 points agree" in drawing.sentence
    assert f"{result.drafts[0].name} at SL 5: 0.80 on the clock, 1.00 simulated" in drawing.sentence
    result.plain_clock = 1.15
    assert "took 1.15 times what its cost curve says, so all points" in draw_drafts(result)[0].sentence
    for point in (points[2], points[4]):
        point.clocked.prompts = 1
    drawing = draw_drafts(result)[0]
    assert "Timed: only 1 prompt, too few to compare" in drawing.sentence
    assert list(drawing.figure.data[2].error_y.array) == [0.0, 0.0]
    points[2].clocked = None  # as in older results
    assert "on how many prompts is not recorded" in draw_drafts(result)[0].sentence


def test_the_pair_of_opposite_shapes_is_found():
    wide, deep = opposite_shapes(make_drafts().drafts)
    assert (wide.name, deep.name) == ("wide", "deep")
    assert "At about equal parameters" in draw_drafts(make_drafts())[1].sentence
    assert opposite_shapes(make_drafts().drafts[:1]) is None


def test_sentences_follow_the_result():
    result = make_evaluation()
    behind = draw_evaluation(result)[0].sentence
    assert "behind the oracle" in behind
    entry = result.entry("confidence:0.4").rows[ALL].simulated
    entry.cut.low, entry.cut.value, entry.cut.high = -0.3, -0.2, -0.1
    row = result.entry("confidence:0.4").rows[ALL]
    assert "Too few prompts to decide which policy is faster" in draw_evaluation(result)[1].sentence
    for other in result.policies:
        timing = other.rows[ALL].simulated
        timing.prompts = 40
        other.rows[ALL].clock = replace(timing)
    row.clock.cut = Interval(-0.01, -0.03, 0.01)  # the clock does not say so
    unsure = draw_evaluation(result)[1].sentence.split("not distinguishable from it:")
    assert "over 40 simulated prompts and over 40 on the clock" in unsure[0]
    assert "Confidence 0.4" not in unsure[0] and "Confidence 0.4" in unsure[1]
    result.entry("oracle:best").rows[ALL].clock = None  # it cannot be timed and is not compared
    assert "over 40 on the clock" in draw_evaluation(result)[1].sentence
    row.clock.cut = Interval(-0.2, -0.3, -0.1)
    slower = draw_evaluation(result)[1].sentence.split("slower:")[1].split(";")[0]
    assert "Confidence 0.4" in slower


def test_one_suite_is_not_reported_twice():
    result = make_evaluation()
    several = {suite.name for suite in draw_evaluation(result)[1].figure.data}
    result.setting.prompts = {"code": 6}
    assert {suite.name for suite in draw_evaluation(result)[1].figure.data} == {ALL} < several
    assert [line.name for line in draw_evaluation(result)[5].figure.data] == [ALL]
    assert not any("by suite" in table.title for table in evaluation_tables(result))


def test_names_from_a_result_are_inert(tmp_path):
    result = make_drafts()
    hostile = replace(result, drafts=[replace(result.drafts[0], name=HOSTILE), *result.drafts[1:]])
    for drawing in draw_drafts(hostile):
        text = json.dumps(drawing.figure.to_plotly_json())
        assert "<img" not in text and "%{x}>" not in text
    page = write_html(hostile, tmp_path).read_text()
    assert "<img" not in page


def test_the_page_loads_the_library_from_beside_it(tmp_path):
    first, second = write_html(make_evaluation(), tmp_path), write_html(make_drafts(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "drafts-report.html", LIBRARY}
    for path in (first, second):
        page = path.read_text()
        assert len(page) < 300_000 and f'src="{LIBRARY}"' in page
        assert "https://" not in page and "var(--" not in page


def test_the_page_is_written_by_a_command_from_a_result_of_either_kind(tmp_path, capsys):
    for name, result in {"result.json": make_evaluation(), "drafts-result.json": make_drafts()}.items():
        save_result(result, tmp_path / name)
    main([tmp_path / "result.json", tmp_path / "drafts-result.json"])
    assert {"report.html", "drafts-report.html", LIBRARY} <= {path.name for path in tmp_path.iterdir()}
    with pytest.raises(typer.Exit):
        main([tmp_path / "none.json"])
    assert "Cannot read" in capsys.readouterr().err


def test_decoding_imports_no_page_and_no_model_for_them():
    code = "import sys, decoding.evaluation.results, decoding.cli.evaluate, decoding.cli.whatif\n"
    code += "print([m for m in ('plotly', 'gradio', 'torch', 'viz') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
