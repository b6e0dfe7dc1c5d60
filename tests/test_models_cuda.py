"""The CUDA engine on the CPU: its buffers, places, rewinding, acceptance and graphs."""

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from decoding.engines import cuda_attention
from decoding.engines.base import CachedModel
from decoding.engines.cuda import row_bucket
from decoding.engines.cuda_attention import key_bucket
from decoding.engines.cuda_graphs import GraphRunner
from decoding.engines.inputs import FINAL
from decoding.errors import UserError
from decoding.loop.drafting import prefill

from .fake_cuda import fake_gpu, recording
from .lean_models import VOCAB, fixed, ids, lean
from .tiny_models import tiny_config

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
        p = row.softmax(-1)
        assert step.p == pytest.approx(float(p.max()), abs=1e-5)
        assert step.entropy == pytest.approx(float(torch.special.entr(p).sum()), abs=1e-4)
        assert step.top10 == pytest.approx(p.topk(10).values.tolist(), abs=1e-5)
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
