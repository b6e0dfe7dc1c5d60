"""The race's figures show the run's data."""

import pytest

from decoding.analysis.counts import counts
from decoding.analysis.metrics import speedup
from tests.toy import ToyPair, quick_run
from viz.figures.race import draw_run, plain, static_speedups

from .runs import HOSTILE, make_run

LANES = ("autoregressive", "static:5", "confidence:0.5", "oracle")


def drawn(run):
    return {drawing.name: drawing for drawing in draw_run(run)}


def test_the_lookahead_figure_has_every_iteration_of_every_drafting_lane():
    run = make_run(lanes=LANES)
    figure = drawn(run)["lookahead"].figure
    bars = [trace for trace in figure.data if trace.type == "bar"]
    for row, trace in enumerate(run.lanes[1:]):
        outline, fill = bars[2 * row : 2 * row + 2]
        assert list(outline.x) == [it.start for it in trace.iterations]
        assert list(outline.y) == [it.n_drafted for it in trace.iterations]
        assert list(fill.y) == [it.n_accepted for it in trace.iterations]
        assert [facts[:2] for facts in outline.customdata] == [[row + 1, it.start] for it in trace.iterations]
        ends = [x + width for x, width in zip(outline.x, outline.width)]
        assert all(end <= start for end, start in zip(ends, outline.x[1:]))  # bars do not overlap


def test_many_bars_have_no_outlines_that_would_merge_into_a_fill():
    for tokens, width in ((200, 1.2), (900, 0)):
        run = make_run(lanes=("autoregressive", "static:3"), n_tokens=tokens)
        guessed = drawn(run)["lookahead"].figure.data[0]
        assert guessed.marker.line.width == width and (guessed.marker.opacity < 0.5) == (width == 0)


def test_ticks_and_arrows_stand_where_guesses_would_have_held():
    run = make_run(lanes=("autoregressive", "static:2"), n_tokens=200)
    figure = drawn(run)["lookahead"].figure
    ticks, arrows = (trace for trace in figure.data if trace.type == "scatter")
    shown = {x: y for x, y in zip(ticks.x, ticks.y) if x in {it.start for it in run.lanes[1].iterations}}
    top = figure.layout.yaxis.range[1] / 1.08
    iterations = run.lanes[1].iterations
    assert shown == {it.start: it.holds for it in iterations if it.holds <= top}
    assert list(arrows.text) == [f"would have held: {it.holds}" for it in iterations if it.holds > top]
    assert list(arrows.y) == [pytest.approx(top)] * len(arrows.text)


def test_the_legend_names_each_kind_of_mark_once():
    run = make_run(lanes=LANES)
    for iteration in run.lanes[1].iterations:
        iteration.holds = None  # the first row has no ticks
    shown = [trace.name for trace in drawn(run)["lookahead"].figure.data if trace.showlegend]
    assert shown == ["guessed (outline or pale)", "accepted (fill)", "would have held (tick; arrow: beyond)"]


def test_without_a_chain_there_are_no_ticks_and_no_what_if():
    run = make_run(lanes=LANES[:2])
    run.chains = {}
    for trace in run.lanes:
        for iteration in trace.iterations:
            iteration.holds = None
    drawings = drawn(run)
    assert set(drawings) == {"lookahead", "iterations"}
    assert not [trace for trace in drawings["lookahead"].figure.data if trace.type == "scatter"]
    assert "would have held" not in drawings["lookahead"].sentence


def test_the_speedup_figure_has_the_what_if_and_the_lanes_as_measured():
    run = make_run(lanes=LANES)
    drawing = drawn(run)["speedup"]
    line, *points = drawing.figure.data
    curve = static_speedups(run, "shallow")
    assert list(line.x) == list(range(1, 21)) and list(line.y) == list(curve.values())
    assert [point.y[0] for point in points] == [speedup(run, trace).median for trace in run.lanes[1:]]
    assert points[0].x[0] == 5
    best = max(curve, key=curve.get)
    assert f"With hindsight, on this text, the best static SL is {best}: {curve[best]:.2f} times" in drawing.sentence


def test_every_draft_of_a_run_has_its_line():
    run = make_run(lanes=LANES)
    run.chains = {f"draft-{number}": run.chains["shallow"] for number in range(7)}
    lines = [trace.name for trace in drawn(run)["speedup"].figure.data if trace.mode == "lines"]
    assert lines == [f"every static SL, simulated ({draft})" for draft in run.chains]


def test_lines_of_one_policy_with_several_drafts_tell_apart():
    run = make_run(lanes=("autoregressive", "static:5", "ngram/static:5"))
    lines = drawn(run)["iterations"].figure.data
    assert len({(line.line.color, line.marker.symbol) for line in lines}) == len(lines) == 2


def test_sentences_count_what_the_run_counts():
    run = make_run(lanes=LANES)
    sentence = drawn(run)["lookahead"].sentence
    assert f"Static 5 threw away {counts(run.lanes[1]).thrown_away} of" in sentence
    short = sum(it.holds > it.n_drafted for it in run.lanes[1].iterations[:-1])
    assert f" and stopped {short} times although the next guess would have held; " in sentence
    assert f"Confidence 0.5 threw away {counts(run.lanes[2]).thrown_away} of" in sentence
    run = quick_run(["tree:6"], ToyPair(agree=0.7))
    found = counts(run.lanes[0])
    assert found.draft_passes < found.drafted  # siblings are guessed in one pass
    sentence = f"In this run Tree 6 threw away {found.thrown_away} of {found.drafted} guesses."
    assert drawn(run)["lookahead"].sentence == sentence


def test_the_figure_over_iterations_has_every_iteration_of_every_drafting_lane():
    run = make_run(lanes=LANES)
    drawing = drawn(run)["iterations"]
    for line, trace in zip(drawing.figure.data, run.lanes[1:], strict=True):
        assert list(zip(line.x, line.y)) == [(n, it.n_drafted) for n, it in enumerate(trace.iterations, start=1)]
    mean = counts(run.lanes[1]).mean_sl
    assert f"Static 5 took {len(run.lanes[1].iterations)} (SL {mean:.1f} on average), Conf" in drawing.sentence


def test_a_run_without_drafting_lanes_has_no_figures():
    assert draw_run(make_run(lanes=("autoregressive",))) == []


def test_a_slow_draft_is_reported_honestly():
    run = make_run(lanes=LANES[:2], c=3.0)
    assert "no static SL pays" in drawn(run)["speedup"].sentence


def test_labels_are_safe_in_plotly():
    for text in (*HOSTILE, "%{x}"):
        assert "<" not in plain(text) and "%{" not in plain(text)


def test_the_lookahead_figure_shows_the_deepest_guess_of_a_tree():
    run = quick_run(["tree:6", "static:3"], ToyPair(agree=0.7))
    (ticks,) = [one for one in drawn(run)["lookahead"].figure.data if one.name == "deepest guess of a tree (dots)"]
    its = [it for it in run.lane("tree:6").iterations if it.drafted]
    assert list(ticks.y[::3]) == [it.deepest for it in its] and list(ticks.x[::3]) == [it.start for it in its]
