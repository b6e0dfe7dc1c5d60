"""What a comparison notes on its lanes: stand-ins, repeats that do not count, what an engine says of itself."""

from __future__ import annotations

import pytest

from decoding.comparison.compare import Comparison
from decoding.comparison.prepare import prepare
from decoding.errors import UserError
from decoding.records.request import DEFAULT_LANES

from .test_core_compare import request
from .toy import ToyPair, finished_run


def test_the_default_lanes_run_where_nothing_was_fitted():
    run = finished_run(request(lanes=list(DEFAULT_LANES)), ToyPair())
    lanes = ["autoregressive", "static:5", "confidence:0.4", "oracle"]
    assert [trace.lane for trace in run.lanes] == run.settings.lanes == lanes
    note = "It replaces DISCO, which is not fitted for this pair."
    assert [trace.notes for trace in run.lanes] == [[], [], [note], []]
    with pytest.raises(UserError, match="disco is not fitted .* leave this lane out"):
        finished_run(request(lanes=["autoregressive", "disco"]), ToyPair())


def test_a_repeat_that_went_otherwise_is_left_out_and_noted():
    """Some GPUs are not bitwise reproducible."""
    prepared = prepare(request(lanes=["static:4"], repeats=3), ToyPair())
    comparison = Comparison(prepared, lambda: False, "x")
    for kind, data in comparison.events():
        if kind == "lane_finished" and data["repeat"] == 0:
            prepared.pair._drafts["small"].seed += 7
    trace = comparison.run.lanes[0]
    assert len(trace.repeats) == 1
    assert trace.notes == ["A repeat whose iterations differed from the first one's was left out, in all lanes."]


def test_a_repeat_with_other_iterations_counts_in_no_lane(monkeypatch):
    first_time = Comparison._time

    def otherwise(self, index, repeat):
        run = yield from first_time(self, index, repeat)
        if (index, repeat) == (1, 1):
            run.iterations[0].n_accepted += 1
        return run

    monkeypatch.setattr(Comparison, "_time", otherwise)
    run = finished_run(request(repeats=3), ToyPair())
    assert [len(trace.repeats) for trace in run.lanes] == [2] * len(run.lanes)
    left_out = [trace.lane for trace in run.lanes if any("left out" in note for note in trace.notes)]
    assert left_out == [run.lanes[1].lane]


def test_what_an_engine_says_of_itself_is_in_the_notes():
    pair = ToyPair()
    pair.target.note = "No graph could be recorded."
    run = finished_run(request(lanes=["autoregressive", "ngram/static:2"], repeats=1), pair)
    assert all(trace.notes == ["No graph could be recorded."] for trace in run.lanes)
