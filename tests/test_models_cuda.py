"""The CUDA engine on the CPU: its buffers, places, rewinding, acceptance and graphs; and the loop that works on it."""

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from decoding.comparison.costs import measure_decision
from decoding.comparison.lane_run import LaneRun
from decoding.comparison.prepare import make_draft, prepare
from decoding.engines import cuda_attention
from decoding.engines.base import CachedModel
from decoding.engines.cuda import row_bucket
from decoding.engines.cuda_attention import key_bucket
from decoding.engines.cuda_graphs import GraphRunner
from decoding.engines.inputs import FINAL
from decoding.engines.loading import load_hf_model
from decoding.engines.pair import Pair, load_pair
from decoding.errors import UserError
from decoding.lookahead.base import DraftState
from decoding.loop.device_drafting import DeviceDraft, Waiting
from decoding.loop.drafting import ModelDraft, NgramDraft, prefill
from decoding.loop.speculative import make_verifier, verify_on_device, verify_on_host
from decoding.records.request import CompareRequest

from .fake_cuda import fake_cuda, fake_gpu, recording
from .lean_models import VOCAB, fixed, ids, lean
from .runs import make_costs
from .tiny_models import tiny_config
from .toy import quick_run

LIMIT = 320


def make(engine, layers: int = 2, family=LlamaConfig, kv_heads: int = 2, **options):
    torch.manual_seed(0)
    shape = dict(num_hidden_layers=layers, head_dim=16, num_key_value_heads=kv_heads, max_position_embeddings=LIMIT)
    config = tiny_config(VOCAB, family, **shape, tie_word_embeddings=False)
    hf_model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():  # so that first choices depend on the text
        hf_model.get_input_embeddings().weight.mul_(30)
    return engine(hf_model, **options)


@pytest.fixture(scope="module")
def models():
    return make(fixed), make(lean)


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("family, kv_heads", [(LlamaConfig, 4), (LlamaConfig, 1), (Qwen3Config, 2)])
def test_it_agrees_with_the_lean_engine(family, kv_heads, groups, monkeypatch):
    monkeypatch.setattr(cuda_attention, "takes_groups", lambda device, dtype: groups)
    model, plain = (make(engine, family=family, kv_heads=kv_heads) for engine in (fixed, lean))
    assert isinstance(model, CachedModel) and model.info.engine != "cuda-graphs"
    model.kept_layers = plain.kept_layers = (1, -1)
    for call in (lambda m: m.prefill(ids(30)), lambda m: m.extend(ids(3)), lambda m: m.extend(ids(40))):
        torch.testing.assert_close(call(model), call(plain), atol=1e-4, rtol=0)
        torch.testing.assert_close(model.last_states, plain.last_states, atol=1e-4, rtol=0)
    assert model.length == plain.length == 73


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rejected_entries_never_leak(models, data):
    """Random lengths, accepted prefixes and rewinds; everything after the kept text is overwritten with noise."""
    model, plain = models
    text = ids(data.draw(st.integers(1, 40)))
    model.prefill(text)
    for turn in range(data.draw(st.integers(1, 6))):
        new = ids(data.draw(st.integers(1, 33)), seed=turn)
        got = model.extend(new)
        plain.prefill(text)
        torch.testing.assert_close(got, plain.extend(new), atol=1e-4, rtol=0)
        kept = data.draw(st.integers(0, len(new)))
        text = text + new[:kept]
        model.rewind(len(text))
        with torch.inference_mode():
            model._attention.held[:, :, :, len(text) :] = torch.randn(1).item() * 100


def test_a_step_brings_its_features(models):
    for n in (1, 2, 5):
        for model in models:
            model.prefill(ids(9))
        step, row = models[0].draft_step(ids(n, seed=3), 60), models[1].extend(ids(n, seed=3))[-1, :60]
        p = row.softmax(-1)
        assert step.token == int(row.argmax())
        assert step.p == pytest.approx(float(p.max()), abs=1e-5)
        assert step.entropy == pytest.approx(float(-(p * p.log()).sum()), abs=1e-4)
        assert step.top10 == pytest.approx(p.topk(10).values.tolist(), abs=1e-5)


def test_the_end_of_the_context(models):
    model, _ = models
    model.prefill(ids(LIMIT - 3))
    assert model.extend(ids(3)).isfinite().all()  # the bucket's padding is beyond the context
    for call in (
        lambda: model.extend([1]),
        lambda: model.draft_step([1], VOCAB),
        lambda: model.choices([1], VOCAB),
        lambda: model.draft_planned([1], 2, VOCAB),
    ):
        with pytest.raises(UserError, match="context ends"):
            call()


def test_buckets():
    assert [row_bucket(n) for n in (1, 2, 8, 9, 16, 21, 32)] == [8, 8, 8, 16, 16, 24, 32]
    assert [key_bucket(n, 1152) for n in (1, 256, 257, 600, 1025, 1152)] == [256, 256, 512, 1024, 1152, 1152]


@pytest.fixture
def cuda(monkeypatch):
    with fake_cuda(monkeypatch) as cuda:
        yield cuda


@pytest.mark.parametrize("recorded", [False, True])
def test_iterations_on_the_device_do_what_single_steps_do(cuda, recorded):
    """Random acceptances, on graphs recorded elsewhere in the text: they contain no position and leak no state."""
    draft, target = (make(fixed, layers=1) for _ in range(2))
    if recorded:
        recording(draft), recording(target)
    plain = make(lean, layers=1)
    draft.kept_layers = plain.kept_layers = FINAL
    draw = random.Random(0)
    for n_prompt in (1, 20, 235):  # the last one exceeds the first bucket of keys
        text = ids(n_prompt, seed=n_prompt)
        for model in (draft, target):
            prefill(model, text)
        while len(text) < n_prompt + 40:
            text = one_iteration(draw, text, draft, target, plain)
    assert (sum(graph.replays > 1 for graph in cuda.graphs) > 5) == recorded and draft.note is None
    assert (draft.info.engine == target.info.engine == "cuda-graphs") == recorded


def one_iteration(draw, text, draft, target, plain):
    """Drafting by steps or in one launch, a spoilt proposal, the check, the rewind: each against the lean engine."""
    n = draw.choice((1, 3, 5, 9, 20))
    prefill(plain, text)
    expected, token = [], text[-1]
    for _ in range(n):
        row = plain.extend([token])[0, :60]
        expected.append(token := int(row.argmax()))
    if draw.random() < 0.5:
        drafted = draft.draft_planned(text[draft.length :], n, 60)
    else:
        unread, steps = text[draft.length :], []
        for _ in range(n):
            step = draft.draft_step(unread, 60)
            steps, unread = [*steps, step.token], [step.token]
        assert step.p == pytest.approx(float(row.softmax(-1).max()), abs=1e-5)
        torch.testing.assert_close(draft.last_states, plain.last_states, atol=1e-4, rtol=0)
        drafted = torch.tensor(steps)
    assert drafted.tolist() == expected and draft.length == len(text) + n - 1
    wrong = draw.randint(0, n)
    spoiled = drafted.clone()
    spoiled[wrong : wrong + 1] = (spoiled[wrong : wrong + 1] + 1) % 60
    tokens, choices, n_accepted = target.verify_planned(text[-1], spoiled, 60)
    assert n_accepted == wrong and tokens == spoiled.tolist() and choices[:wrong] == expected[:wrong]
    assert target.length == len(text) + n
    target.rewind(len(text) - 1)
    assert target.choices([text[-1], *tokens], 60) == choices
    text = text + tokens[:wrong] + [choices[wrong]]
    target.rewind(len(text) - 1)
    draft.rewind(min(draft.length, max(0, len(text) - draw.randint(1, 5))))  # up to five tokens that it has not read
    return text


def test_a_long_reading_outlasts_the_launches_that_it_takes(cuda):
    """More rows than one graph has: each launch overwrites what the last one returned."""
    model, plain = recording(make(fixed)), make(lean)
    model.kept_layers = plain.kept_layers = FINAL
    for one in (model, plain):
        one.prefill(ids(5))
    got, expected = model.extend(ids(70)), plain.extend(ids(70))
    kept = model.last_states
    model.extend(ids(3))
    model.rewind(9)
    model.choices(ids(30), VOCAB)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(kept, plain.last_states, atol=1e-4, rtol=0)


def test_what_stands_in_the_buffer_behind_the_proposals_is_never_accepted(models):
    model, _ = models
    model.prefill(ids(9))
    token = 1
    right = [token := model.choices([token], VOCAB)[0] for _ in range(5)]
    for n in (5, 2):  # the second time the other three, which are right too, are still there
        model.rewind(9)
        assert model.verify_planned(1, torch.tensor(right[:n]), VOCAB)[2] == n


def test_guesses_that_are_planned_together_see_each_other_beyond_a_bucket_of_keys(models, monkeypatch):
    model, own = models[0], models[0]._attention.plan_at
    model.prefill(ids(250))
    monkeypatch.setattr(model._attention, "plan_at", lambda at, n: own(at, n) if at.max() < n else pytest.fail())
    assert len(model.draft_planned([1], 12, VOCAB)) == 12


def test_graphs_are_few(cuda):
    """One per bucket, whatever the place in the text and the number of unread tokens."""
    model = recording(make(fixed))
    for place in (5, 60, 130):
        for n in (1, 2, 7):
            for work in (model.draft_step, lambda new, vocab: model.draft_planned(new, 5, vocab), model.choices):
                model.prefill(ids(place))
                work(ids(n), VOCAB)
    assert len(cuda.graphs) == 3


def test_a_check_is_launched_while_the_drafting_may_still_run(monkeypatch):
    """Input buffers are filled from pinned memory without waiting; each fill has its own memory."""
    with fake_gpu(monkeypatch) as cuda:
        draft, target = (make(fixed, layers=1, device="cuda") for _ in range(2))
        assert draft.records_graphs
        for model in (draft, target):
            model.prefill(ids(9))
        drafted = draft.draft_planned(ids(1), 3, VOCAB)
        tokens, _, n_accepted = target.verify_planned(ids(1)[0], drafted, VOCAB)
        assert n_accepted == 3 and len(tokens) == 3
        draft.rewind(9)
        draft.draft_step(ids(2), VOCAB)
        assert cuda.memory.fills == [True] * 3
        pinned = [one.tolist() for one in cuda.memory.pinned.values()]
        assert pinned == [[9, 0, *ids(1)], [9, 3, *ids(1)], [9, 1, *ids(2)]]


def test_a_capture_that_fails_falls_back_with_a_sentence(cuda):
    model, plain = recording(make(fixed)), make(lean)
    cuda.fail = RuntimeError("operation not permitted when stream is capturing\nmore")
    for one in (model, plain):
        one.prefill(ids(5))
    torch.testing.assert_close(model.extend(ids(3)), plain.extend(ids(3)), atol=1e-4, rtol=0)
    assert model.note.endswith("slower: operation not permitted when stream is capturing")
    assert model.info.engine == "lean, fixed buffers" and cuda.current is cuda.default


def test_what_reads_a_number_back_cannot_be_recorded(cuda):
    """The stand-in is as strict as CUDA: the engine's passes must never do this."""
    runner = GraphRunner(torch.device("cpu"))
    assert not runner.records
    runner.records = True  # as on a GPU
    row, index = torch.arange(4), torch.tensor(2)
    assert runner.run("key", lambda: row[index]) == 2
    assert "capturing" in runner.note and cuda.graphs == []


def test_a_head_that_is_the_embedding_takes_its_memory_once():
    model = fixed(AutoModelForCausalLM.from_config(tiny_config(VOCAB, num_hidden_layers=1), dtype=torch.float32))
    assert model.head.weight.data_ptr() == model.embedding.data_ptr()


def test_its_tensors_can_be_exchanged_later():
    """ZeroGPU loads models on a stand-in for CUDA and replaces the memory by real one later, in a fork."""
    model = make(fixed)
    tensors = [model.embedding, model.cos, model._input, model._attention.held, model.blocks[0].attention_norm]
    assert not any(tensor.is_inference() for tensor in tensors)
    expected = model.prefill(ids(9))
    for tensor in tensors:
        tensor.data = tensor.data.clone()
    torch.testing.assert_close(model.prefill(ids(9)), expected)


# -- the loop on an engine that keeps greedy work on its device

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


def test_the_other_rules_work_with_the_engine_too(pairs):
    found = run(pairs[1], lanes=FEW, rule="coupling", temperature=0.8)
    assert all(trace.verdict.same for trace in found.lanes)


def test_proposals_are_cut_after_an_end():
    assert Waiting(None, frozenset({7})).cut([1, 7, 3, 7]) == [1, 7]
    assert Waiting(None, frozenset()).cut([1, 7]) == [1, 7]
