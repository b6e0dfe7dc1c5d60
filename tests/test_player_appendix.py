"""Plots and settings below the player in an exported file."""

from __future__ import annotations

from dataclasses import replace

from decoding.analysis.whatif import simulate_lane
from tests.runs import make_run
from viz.player.appendix import appendix, settings_table
from viz.player.export import export_html


def test_the_plot_says_which_static_sl_would_be_best():
    run = make_run()
    speeds = {sl: simulate_lane(run, f"static:{sl}").speedup for sl in range(1, 21)}
    best = max(speeds, key=lambda sl: (speeds[sl], -sl))
    assert f"Best: SL {best}, {speeds[best]:.2f}×" in appendix(run)
    assert "<title>SL 5:" in appendix(run)  # the measured lane


def test_the_settings_are_there_and_what_a_file_holds_is_text():
    run = make_run(rule="coupling")
    run = replace(run, machine=replace(run.machine, processor="<script>alert(1)</script>"))
    assert ["rule", "coupling, temperature 0.8, seed 0"] in settings_table(run)
    assert "<script>" not in appendix(run)
    assert "&lt;script&gt;alert(1)" in export_html(run)


def test_a_run_without_a_chain_has_settings_and_no_plot():
    assert "<svg" not in appendix(replace(make_run(), chains={}))
    assert "How the run was made" in appendix(replace(make_run(), chains={}))
