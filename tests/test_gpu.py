"""Real kernels and real CUDA graphs, where there is a GPU; elsewhere counted as not run (see tests/conftest.py)."""

import pytest

from decoding.bench.lossless import check_lossless, transformers_reference
from decoding.engines.pair import load_pair

from .feature_pair import load_feature_pair
from .test_core_lossless import PROMPTS
from .toy import quick_run

pytestmark = pytest.mark.gpu
LANES = ["autoregressive", "static:1", "static:6", "heuristic", "confidence:0.1", "oracle", "ngram/static:3"]


def test_passes_are_recorded_as_graphs(lively_pair):
    pair = load_pair(target=lively_pair[0], draft=lively_pair[1], dtype="float32", device="cuda")
    run = quick_run(["autoregressive", "static:4"], pair, PROMPTS[0])
    assert run.pair.target.engine == "cuda-graphs" and run.machine.gpu
    assert not any("graph" in note for trace in run.lanes for note in trace.notes)


def test_the_text_is_that_of_generate(lively_pair):
    pair = load_pair(target=lively_pair[0], draft=lively_pair[1], dtype="float32", device="cuda")
    prompts = [pair.encode_prompt(text) for text in PROMPTS]
    *_, counts = check_lossless(pair, transformers_reference(lively_pair[0]), prompts, 24, caps=range(1, 17, 5))
    assert counts.different == [] and counts.compared == counts.equal + counts.near_ties


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_lanes_write_the_same_text(lively_pair, dtype):
    pair = load_pair(target=lively_pair[0], draft=lively_pair[1], dtype=dtype, device="cuda")
    run = quick_run(LANES, pair, PROMPTS[0])
    for trace in run.lanes:  # in bfloat16 the number of rows may decide a near tie: its gap is then reported
        assert trace.verdict.same or trace.verdict.gap is not None
        assert trace.verdict.same or dtype == "bfloat16" or trace.verdict.near_tie


@pytest.mark.parametrize("rule", ["greedy", "coupling"])
def test_drafts_that_read_states_write_the_same_text(tmp_path, monkeypatch, rule):
    pair = load_feature_pair(tmp_path, monkeypatch, device="cuda")
    lanes = ["static:4", "confidence:0.2", "tree:6", "oracle", "heads/static:4", "heads/tree:6", "block/static:4"]
    run = quick_run(
        ["autoregressive", *lanes], pair, PROMPTS[0], rule=rule, temperature=0.0 if rule == "greedy" else 0.7
    )
    for trace in run.lanes:
        assert trace.verdict.same or trace.verdict.near_tie
        assert not any("graph" in note for note in trace.notes)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_coupled_lanes_write_the_same_text(lively_pair, temperature):
    pair = load_pair(target=lively_pair[0], draft=lively_pair[1], dtype="float32", device="cuda")
    run = quick_run(LANES, pair, PROMPTS[0], rule="coupling", temperature=temperature)
    assert all(trace.verdict.same or trace.verdict.near_tie for trace in run.lanes)
