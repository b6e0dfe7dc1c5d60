"""The CUDA engine's buffers, on the CPU and without graphs: places, buckets, rewinding, acceptance."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from decoding.errors import UserError
from decoding.models.base import CachedModel
from decoding.models.cuda import CudaModel, Drafted, key_bucket, row_bucket
from decoding.models.cuda_graphs import GraphRunner
from decoding.models.lean import LeanModel
from decoding.models.loading import describe_model

VOCAB, LIMIT = 64, 320


def make(kind, layers: int = 2, seed: int = 0, family=LlamaConfig, kv_heads: int = 2):
    torch.manual_seed(seed)
    config = family(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=LIMIT,
    )
    hf_model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():  # so that first choices depend on the text
        hf_model.get_input_embeddings().weight.mul_(30)
    info = describe_model(hf_model, "test", "test", "none")
    return kind(hf_model, info, "float32", "cpu")


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
        model.keep_hidden = True
    for call in (lambda m: m.prefill(ids(30)), lambda m: m.extend(ids(3)), lambda m: m.extend(ids(40))):
        torch.testing.assert_close(call(fixed), call(lean), atol=1e-4, rtol=0)
        torch.testing.assert_close(fixed.last_hidden, lean.last_hidden, atol=1e-4, rtol=0)
    assert fixed.length == lean.length == 73


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rejected_entries_never_leak(models, data):
    """Random lengths, accepted prefixes and rewinds; all that lies beyond the kept text is overwritten with noise."""
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


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 20), n_unseen=st.integers(1, 5), prompt=st.integers(1, 30), wrong=st.integers(0, 20))
def test_chain_and_check_do_what_single_steps_do(n, n_unseen, prompt, wrong):
    draft, target, lean = make(CudaModel, layers=1), make(CudaModel, layers=1), make(LeanModel, layers=1)
    text = ids(prompt + n_unseen)
    draft.prefill(text[:prompt])
    drafted = draft.draft_chain(text[prompt:], n, VOCAB)
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
    tokens, choices, n_accepted = target.check_chain(text[-1], Drafted(drafted.tokens), VOCAB)
    assert tokens == drafted.tokens.tolist() and len(choices) == n + 1
    assert n_accepted == min(wrong, n) and choices[:n_accepted] == expected[:n_accepted]
    assert target.length == len(text) + n
    target.rewind(len(text) - 1)
    assert target.choices([text[-1], *tokens], VOCAB) == choices


def test_a_step_brings_its_features(models):
    fixed, lean = models
    for n in (1, 2, 5):
        fixed.prefill(ids(9)), lean.prefill(ids(9))
        step, row = fixed.draft_step(ids(n, seed=3), 60), lean.extend(ids(n, seed=3))[-1, :60]
        p = row.softmax(-1)
        assert step.token == int(row.argmax())
        assert step.p == pytest.approx(float(p.max()), abs=1e-5)
        assert step.entropy == pytest.approx(float(-(p * p.log()).sum()), abs=1e-4)
        assert step.top10 == pytest.approx(p.topk(10).values.tolist(), abs=1e-5)


def test_the_end_of_the_context(models):
    fixed, _ = models
    fixed.prefill(ids(LIMIT - 3))
    assert fixed.extend(ids(3)).isfinite().all()  # the bucket's padding lies beyond the context
    for call in (
        lambda: fixed.extend([1]),
        lambda: fixed.draft_step([1], VOCAB),
        lambda: fixed.choices([1], VOCAB),
        lambda: fixed.draft_chain([1], 2, VOCAB),
    ):
        with pytest.raises(UserError, match="context ends"):
            call()


def test_buckets():
    assert [row_bucket(n) for n in (1, 2, 8, 9, 16, 21, 32)] == [8, 8, 8, 16, 16, 24, 32]
    assert [key_bucket(n, 1152) for n in (1, 256, 257, 600, 1025, 1152)] == [256, 256, 512, 1024, 1152, 1152]


def test_a_capture_that_fails_falls_back_with_a_sentence(monkeypatch):
    runner = GraphRunner(torch.device("cpu"))
    assert not runner.records
    runner.records = True  # as on a GPU

    def fail(function):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(runner, "_record", fail)
    assert runner.run("key", lambda: 7) == 7 and not runner.records
    assert runner.note.endswith("slower: operation not permitted when stream is capturing")


def test_a_recorded_key_is_replayed(monkeypatch):
    class Graph:
        replays = 0

        def replay(self):
            self.replays += 1

    graph, runner = Graph(), GraphRunner(torch.device("cpu"))
    runner.records = True
    monkeypatch.setattr(runner, "_record", lambda function: (graph, function()))
    assert [runner.run("key", lambda: "result") for _ in range(3)] == ["result"] * 3 and graph.replays == 3
