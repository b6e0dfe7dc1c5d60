"""The loop on an engine that keeps greedy work on its device: the CUDA engine, on the CPU."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from decoding.comparison.costs import measure_decision
from decoding.comparison.lane_run import LaneRun
from decoding.comparison.prepare import make_draft, prepare
from decoding.engines.loading import load_hf_model
from decoding.engines.pair import Pair, load_pair
from decoding.lookahead.base import DraftState
from decoding.loop.device_drafting import DeviceDraft
from decoding.loop.drafting import ModelDraft, NgramDraft
from decoding.loop.speculative import make_verifier, verify_on_device, verify_on_host
from decoding.records.request import CompareRequest

from .fake_cuda import recording
from .lean_models import fixed
from .runs import make_costs
from .toy import quick_run

LANES = ["autoregressive", "static:6", "heuristic", "confidence:0.1", "entropy:0.9", "oracle", "ngram/static:3"]
FEW = ["autoregressive", "static:6", "confidence:0.1"]
PROMPT = "def f(x):\n    return"


@pytest.fixture(scope="module")
def pairs(lively_pair):
    """The same weights twice: on the lean engine, and on fixed buffers with the work on the device."""
    target, draft = lively_pair
    return load_pair(target=target, draft=draft, dtype="float32", device="cpu"), on_fixed_buffers(lively_pair)


def on_fixed_buffers(folders) -> Pair:
    pair = load_pair(target=folders[0], draft=folders[1], dtype="float32", device="cpu")
    pair.target, pair._drafts["draft"] = (fixed(load_hf_model(Path(folder), torch.float32)) for folder in folders)
    return pair


@pytest.fixture(scope="module")
def both(pairs):
    """The runs of both pairs with all lanes."""
    return [run(pair) for pair in pairs]


def run(pair, lanes=LANES, max_new_tokens=24, **more):
    return quick_run(lanes, pair, PROMPT, max_new_tokens=max_new_tokens, **more)


def shape(trace):
    return [(it.start, [token.id for token in it.drafted], it.n_accepted, it.stop) for it in trace.iterations]


def test_the_same_iterations_as_on_the_host(both):
    lean, fixed = both
    for one, other in zip(lean.lanes, fixed.lanes):
        assert other.verdict.same and one.output == other.output
        assert shape(one) == shape(other), one.lane
    fates = {token.fate for trace in fixed.lanes for it in trace.iterations for token in it.drafted}
    assert fates == {"accepted", "rejected", "dropped"}


def test_the_end_of_sequence_among_proposals_on_the_device(pairs, both):
    text = both[1].lanes[0].output
    for pair in pairs:
        pair.tokenizer.eos_ids = frozenset({text[17]})
    try:
        lean, fixed = (run(pair, lanes=FEW) for pair in pairs)
    finally:
        for pair in pairs:
            pair.tokenizer.eos_ids = frozenset({256})
    for one, other in zip(lean.lanes, fixed.lanes):
        assert shape(one) == shape(other) and other.finish == "eos" and other.output == one.output


def test_an_uncapped_oracle_goes_step_by_step_beyond_the_longest_graph(pairs):
    fixed = pairs[1]
    prepared = prepare(CompareRequest(PROMPT, lanes=["oracle"], max_new_tokens=60), fixed)
    source = prepared.source("draft")
    source.start(prepared.prompt)
    state = DraftState()
    assert source.propose(list(prepared.prompt.ids), state, 30, frozenset()) and len(state.tokens) == 30
    assert source.take_waiting() is None
    source.forget(len(prepared.prompt) - 1)
    state.begin(0)
    assert source.propose(list(prepared.prompt.ids), state, 20, frozenset()) and not state.tokens
    assert source.take_waiting() is not None and source.take_waiting() is None


@pytest.fixture
def graph_pair(lively_pair, cuda) -> Pair:
    """The same weights on fixed buffers whose passes are recorded and replayed, timed by CUDA's events."""
    pair = on_fixed_buffers(lively_pair)
    for model in (pair.target, pair.draft()):
        recording(model).info.device = "cuda"
    return pair


def test_a_comparison_on_recorded_graphs(pairs, graph_pair, cuda):
    lanes = ["static:3", "confidence:0.1"]
    found = run(graph_pair, lanes=lanes, max_new_tokens=12)
    expected = run(pairs[0], lanes=lanes, max_new_tokens=12)
    for one, other in zip(expected.lanes, found.lanes):
        assert other.verdict.same and one.output == other.output and shape(one) == shape(other)
        assert other.notes == []
        assert all(min(repeat.verify_s) > 0 for repeat in other.repeats)
    assert found.machine.gpu == "a stand-in for a GPU" and cuda.graphs and cuda.waits
    assert graph_pair.target.note is None and graph_pair.draft().note is None


def test_graphs_are_recorded_off_the_clock(graph_pair, cuda):
    """A timed lane has all its graphs already, however long its text grows."""
    pair = graph_pair
    prepared = prepare(CompareRequest("x" * 230, lanes=["static:3"], max_new_tokens=40), pair)
    lane, again = (LaneRun(prepared, prepared.lanes[0], make_costs(drafts=["draft"])) for _ in range(2))
    timed = lane.decode()
    next(timed)
    recorded = len(cuda.graphs)
    assert recorded > 3
    assert len(list(timed)) > 3 and len(lane.output) == 40 and len(cuda.graphs) == recorded
    again.run()
    assert len(cuda.graphs) == recorded


def test_who_works_where(pairs):
    greedy = prepare(CompareRequest(PROMPT, lanes=["static:2"]), pairs[1])
    assert isinstance(greedy.source("draft"), DeviceDraft)
    assert make_verifier(pairs[1].target, None, greedy.rule).func is verify_on_device
    assert isinstance(make_draft(pairs[1], "ngram", greedy.rule), NgramDraft)
    coupled = prepare(CompareRequest(PROMPT, lanes=["static:2"], rule="coupling", temperature=1.0), pairs[1])
    assert type(coupled.source("draft")) is ModelDraft
    assert make_verifier(pairs[1].target, None, coupled.rule).func is verify_on_host
    assert make_verifier(pairs[0].target, None, greedy.rule).func is verify_on_host


def test_whoever_decides_after_each_guess_pays_for_waiting(pairs, monkeypatch):
    """Beyond c = 0.1, and 0.05 for the first, a guess took 0.125, 0.15, 0.125 and, while a graph was recorded, 8.85."""
    decoded = [
        SimpleNamespace(drafted=[1] * n, times=(2.0 * spent, 0.0, 0.0, 0.0), reads=None)
        for n, spent in ((2, 0.5), (1, 0.3), (2, 0.5), (1, 9.0), (0, 0.0))
    ]
    monkeypatch.setattr("decoding.comparison.costs.warm_up", lambda *given: decoded)
    costs = make_costs(0.1, drafts=["draft"], target_s=2.0, first_step={"draft": 0.05})
    for pair, waiting in zip(pairs, (0.0, 0.1375)):
        prepared = prepare(CompareRequest(PROMPT, lanes=["static:2", "confidence:0.5"]), pair)
        found = [measure_decision(prepared, lane, costs) for lane in prepared.lanes]
        assert found == [0.0, pytest.approx(waiting)]


def test_a_tree_that_waits_is_measured_as_large_as_its_cost_lets_it_grow(pairs, monkeypatch):
    """Two draft passes take 1.2 more than twice c = 0.1: over six guesses, then over the two that they leave."""
    weighed = []

    def decoded(prepared, lane, costs, n_tokens):
        weighed.append(costs.decision.get("costtree"))
        n = 6 if weighed[-1] is None else 2
        return [SimpleNamespace(drafted=[1] * n, times=(1.4, 0.0, 0.0, 0.0), reads=2)]

    monkeypatch.setattr("decoding.comparison.costs.warm_up", decoded)
    for pair, spent, weights in zip(pairs, (0.0, 0.6), ([None], [None, pytest.approx(0.2)])):
        prepared = prepare(CompareRequest(PROMPT, lanes=["costtree"]), pair)
        assert measure_decision(prepared, prepared.lanes[0], make_costs(0.1, drafts=["draft"], target_s=1.0)) == (
            pytest.approx(spent)
        )
        assert weighed == weights
        weighed.clear()


def test_the_other_rules_work_with_the_engine_too(pairs):
    found = run(pairs[1], lanes=FEW, rule="coupling", temperature=0.8)
    assert all(trace.verdict.same for trace in found.lanes)
