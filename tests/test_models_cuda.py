"""The CUDA engine's buffers, on the CPU and without graphs: places, buckets, rewinding, acceptance."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from decoding.engines.base import CachedModel
from decoding.engines.cuda import CudaModel, Drafted, key_bucket, row_bucket
from decoding.engines.cuda_graphs import GraphRunner
from decoding.engines.inputs import FINAL
from decoding.engines.lean import LeanModel
from decoding.engines.linears import DenseLinear
from decoding.engines.loading import describe_model
from decoding.errors import UserError
from decoding.loop.drafting import prefill

from .fake_cuda import fake_cuda, fake_gpu
from .tiny_models import tiny_config

VOCAB, LIMIT = 64, 320


def make(kind, layers: int = 2, seed: int = 0, family=LlamaConfig, kv_heads: int = 2, device: str = "cpu"):
    torch.manual_seed(seed)
    shape = dict(num_hidden_layers=layers, head_dim=16, num_key_value_heads=kv_heads, max_position_embeddings=LIMIT)
    config = tiny_config(VOCAB, family, **shape, tie_word_embeddings=False)
    hf_model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():  # so that first choices depend on the text
        hf_model.get_input_embeddings().weight.mul_(30)
    info = describe_model(hf_model, "test", "test", "none")
    return kind(hf_model, info, "float32", device)


def ids(n: int, seed: int = 1) -> list[int]:
    return torch.randint(0, VOCAB, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module")
def models():
    return make(CudaModel), make(LeanModel)


@pytest.mark.parametrize("family, kv_heads", [(LlamaConfig, 4), (LlamaConfig, 1), (Qwen3Config, 2)])
def test_it_agrees_with_the_lean_engine(family, kv_heads):
    fixed, lean = (
        make(CudaModel, family=family, kv_heads=kv_heads),
        make(LeanModel, family=family, kv_heads=kv_heads),
    )
    assert isinstance(fixed, CachedModel) and fixed.info.engine != "cuda-graphs"
    for model in (fixed, lean):
        model.kept_layers = (1, -1)
    for call in (lambda m: m.prefill(ids(30)), lambda m: m.extend(ids(3)), lambda m: m.extend(ids(40))):
        torch.testing.assert_close(call(fixed), call(lean), atol=1e-4, rtol=0)
        torch.testing.assert_close(fixed.last_states, lean.last_states, atol=1e-4, rtol=0)
    assert fixed.length == lean.length == 73


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rejected_entries_never_leak(models, data):
    """Random lengths, accepted prefixes and rewinds; everything after the kept text is overwritten with noise."""
    fixed, lean = models
    text = ids(data.draw(st.integers(1, 40)))
    fixed.prefill(text)
    for turn in range(data.draw(st.integers(1, 6))):
        new = ids(data.draw(st.integers(1, 33)), seed=turn)
        got = fixed.extend(new)
        lean.prefill(text)
        torch.testing.assert_close(got, lean.extend(new), atol=1e-4, rtol=0)
        kept = data.draw(st.integers(0, len(new)))
        text = text + new[:kept]
        fixed.rewind(len(text))
        with torch.inference_mode():
            for layer in fixed._attention.layers:
                layer[:, :, len(text) :] = torch.randn(1).item() * 100


@settings(max_examples=25)
@given(n=st.integers(1, 20), n_unseen=st.integers(1, 5), prompt=st.integers(1, 30), wrong=st.integers(0, 20))
def test_drafting_and_check_on_the_device_do_what_single_steps_do(n, n_unseen, prompt, wrong):
    draft, target, lean = make(CudaModel, layers=1), make(CudaModel, layers=1), make(LeanModel, layers=1)
    text = ids(prompt + n_unseen)
    draft.prefill(text[:prompt])
    drafted = draft.draft_planned(text[prompt:], n, VOCAB)
    assert draft.length == prompt + n_unseen + n - 1
    lean.prefill(text)
    lean.rewind(len(text) - 1)
    expected, token = [], text[-1]
    for _ in range(n):
        token = int(lean.extend([token])[0].argmax())
        expected.append(token)
    assert drafted.tokens.tolist() == expected
    drafted.tokens = drafted.tokens.clone()
    if wrong < n:  # the target is the same model: it accepts up to the spoiled proposal and no further
        drafted.tokens[wrong] = (drafted.tokens[wrong] + 1) % VOCAB
    target.prefill(text)
    target.rewind(len(text) - 1)
    tokens, choices, n_accepted = target.verify_planned(text[-1], Drafted(drafted.tokens), VOCAB)
    assert tokens == drafted.tokens.tolist() and len(choices) == n + 1
    assert n_accepted == min(wrong, n) and choices[:n_accepted] == expected[:n_accepted]
    assert target.length == len(text) + n
    target.rewind(len(text) - 1)
    assert target.choices([text[-1], *tokens], VOCAB) == choices


def test_a_step_brings_its_features(models):
    fixed, lean = models
    for n in (1, 2, 5):
        for model in models:
            model.prefill(ids(9))
        step, row = fixed.draft_step(ids(n, seed=3), 60), lean.extend(ids(n, seed=3))[-1, :60]
        p = row.softmax(-1)
        assert step.token == int(row.argmax())
        assert step.p == pytest.approx(float(p.max()), abs=1e-5)
        assert step.entropy == pytest.approx(float(-(p * p.log()).sum()), abs=1e-4)
        assert step.top10 == pytest.approx(p.topk(10).values.tolist(), abs=1e-5)


def test_the_end_of_the_context(models):
    fixed, _ = models
    fixed.prefill(ids(LIMIT - 3))
    assert fixed.extend(ids(3)).isfinite().all()  # the bucket's padding is beyond the context
    for call in (
        lambda: fixed.extend([1]),
        lambda: fixed.draft_step([1], VOCAB),
        lambda: fixed.choices([1], VOCAB),
        lambda: fixed.draft_planned([1], 2, VOCAB),
    ):
        with pytest.raises(UserError, match="context ends"):
            call()


def test_buckets():
    assert [row_bucket(n) for n in (1, 2, 8, 9, 16, 21, 32)] == [8, 8, 8, 16, 16, 24, 32]
    assert [key_bucket(n, 1152) for n in (1, 256, 257, 600, 1025, 1152)] == [256, 256, 512, 1024, 1152, 1152]


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr("decoding.engines.formats.plain_or_packed", DenseLinear)  # as on a GPU
    with fake_cuda(monkeypatch) as cuda:
        yield cuda


def recording(model: CudaModel) -> CudaModel:
    """``model`` with graphs, as on a GPU."""
    model._runner.records = True
    model.info.engine = "cuda-graphs"
    return model


def test_replayed_graphs_do_what_single_steps_do(cuda):
    """Random acceptances on graphs recorded elsewhere in the text: they contain no position and leak no state."""
    draft, target = (recording(make(CudaModel, layers=1)) for _ in range(2))
    lean = make(LeanModel, layers=1)
    draft.kept_layers = lean.kept_layers = FINAL
    draw = random.Random(0)
    for n_prompt in (1, 20, 235):  # the last one exceeds the first bucket of keys
        text = ids(n_prompt, seed=n_prompt)
        for model in (draft, target):
            prefill(model, text)
        while len(text) < n_prompt + 40:
            text = one_iteration(draw, text, draft, target, lean)
    assert sum(graph.replays > 1 for graph in cuda.graphs) > 5 and draft.note is None
    assert draft.info.engine == target.info.engine == "cuda-graphs"


def one_iteration(draw, text, draft, target, lean):
    """Drafting by steps or in one launch, a spoilt proposal, the check, the rewind: each against the lean engine."""
    n = draw.choice((1, 3, 5, 9))
    prefill(lean, text)
    expected, token = [], text[-1]
    for _ in range(n):
        row = lean.extend([token])[0, :60]
        expected.append(token := int(row.argmax()))
    if draw.random() < 0.5:
        drafted = draft.draft_planned(text[draft.length :], n, 60)
    else:
        unread, steps = text[draft.length :], []
        for _ in range(n):
            step = draft.draft_step(unread, 60)
            steps, unread = [*steps, step.token], [step.token]
        assert step.p == pytest.approx(float(row.softmax(-1).max()), abs=1e-5)
        torch.testing.assert_close(draft.last_states, lean.last_states, atol=1e-4, rtol=0)
        drafted = Drafted(torch.tensor(steps))
    assert drafted.tokens.tolist() == expected
    wrong = draw.randint(0, n)
    spoiled = drafted.tokens.clone()
    spoiled[wrong : wrong + 1] = (spoiled[wrong : wrong + 1] + 1) % 60
    tokens, choices, n_accepted = target.verify_planned(text[-1], Drafted(spoiled), 60)
    assert n_accepted == wrong and tokens == spoiled.tolist() and choices[:wrong] == expected[:wrong]
    text = text + tokens[:wrong] + [choices[wrong]]
    target.rewind(len(text) - 1)
    draft.rewind(min(draft.length, len(text) - 1))
    return text


def test_a_long_reading_outlasts_the_launches_that_it_takes(cuda):
    """More rows than one graph has: each launch overwrites what the last one returned."""
    fixed, lean = recording(make(CudaModel)), make(LeanModel)
    fixed.kept_layers = lean.kept_layers = FINAL
    for model in (fixed, lean):
        model.prefill(ids(5))
    got, expected = fixed.extend(ids(70)), lean.extend(ids(70))
    kept = fixed.last_states
    fixed.extend(ids(3))
    fixed.rewind(9)
    fixed.choices(ids(30), VOCAB)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(kept, lean.last_states, atol=1e-4, rtol=0)


def test_graphs_are_few(cuda):
    """One per bucket, whatever the place in the text and the number of unread tokens."""
    model = recording(make(CudaModel))
    for place in (5, 60, 130):
        for n in (1, 2, 7):
            for work in (model.draft_step, lambda new, vocab: model.draft_planned(new, 5, vocab), model.choices):
                model.prefill(ids(place))
                work(ids(n), VOCAB)
    assert len(cuda.graphs) == 3


def test_a_check_is_launched_while_the_drafting_may_still_run(monkeypatch):
    """Input buffers are filled from pinned memory without waiting; each fill has its own memory."""
    with fake_gpu(monkeypatch) as cuda:
        draft, target = (make(CudaModel, layers=1, device="cuda") for _ in range(2))
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
        assert pinned == [
            [9, 0, *ids(1)],
            [9, 3, *ids(1)],
            [9, 1, *ids(2)],
        ]


def test_a_capture_that_fails_falls_back_with_a_sentence(cuda):
    fixed, lean = recording(make(CudaModel)), make(LeanModel)
    cuda.fail = RuntimeError("operation not permitted when stream is capturing\nmore")
    for model in (fixed, lean):
        model.prefill(ids(5))
    torch.testing.assert_close(fixed.extend(ids(3)), lean.extend(ids(3)), atol=1e-4, rtol=0)
    assert fixed.note.endswith("slower: operation not permitted when stream is capturing")
    assert fixed.info.engine == "lean, fixed buffers" and cuda.current is cuda.default


def test_what_reads_a_number_back_cannot_be_recorded(cuda):
    """The stand-in is as strict as CUDA: the engine's passes must never do this."""
    runner = GraphRunner(torch.device("cpu"))
    assert not runner.records
    runner.records = True  # as on a GPU
    row, index = torch.arange(4), torch.tensor(2)
    assert runner.run("key", lambda: row[index]) == 2
    assert "capturing" in runner.note and cuda.graphs == []


def test_a_head_that_is_the_embedding_takes_its_memory_once():
    torch.manual_seed(0)
    hf_model = AutoModelForCausalLM.from_config(tiny_config(VOCAB, num_hidden_layers=1), dtype=torch.float32)
    model = CudaModel(hf_model, describe_model(hf_model, "test", "test", "none"), "float32", "cpu")
    assert model.head.weight.data_ptr() == model.embedding.data_ptr()


def test_its_tensors_can_be_exchanged_later():
    """ZeroGPU loads models on a stand-in for CUDA and replaces the memory by real one later, in a fork."""
    model = make(CudaModel)
    tensors = [model.embedding, model.cos, model._input, *model._attention.layers, model.blocks[0].attention_norm]
    assert not any(tensor.is_inference() for tensor in tensors)
    expected = model.prefill(ids(9))
    for tensor in tensors:
        tensor.data = tensor.data.clone()
    torch.testing.assert_close(model.prefill(ids(9)), expected)
