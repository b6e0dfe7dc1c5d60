"""The lean engine against transformers' modules; a row's bits do not depend on the other rows; logits are float32."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, MptConfig, OPTConfig

from decoding.engines import text_tokens
from decoding.engines.attention import MAX_ROWS, CacheShape, RowAttention, make_attention
from decoding.engines.base import OUTSIDE, CachedModel
from decoding.engines.compiled.layers import PRODUCTS
from decoding.engines.formats import find_format
from decoding.engines.inputs import FINAL
from decoding.engines.invariance import PARTS, Company, keeps_bits, pad_rows
from decoding.engines.linears import TESTED_ROWS, DenseLinear, Linear
from decoding.engines.loading import is_lean
from decoding.engines.transformers_engine import check_rewindable
from decoding.errors import UserError
from decoding.loop.features import all_rows
from tests.lean_models import CONFIGS, fixed, general, ids, lean, lean_config, on_threads, random_model

pytestmark = pytest.mark.usefixtures("all_cores")
LONGROPE = dict(
    rope_type="longrope",
    rope_theta=10000.0,
    short_factor=[1.0] * 8,
    long_factor=[2.0] * 8,
    factor=2.0,
    original_max_position_embeddings=64,
)


@pytest.fixture(params=CONFIGS, scope="module")
def hf_model(request):
    return random_model(CONFIGS[request.param])


def test_engines_agree_with_one_plain_forward_pass(hf_model):
    text = ids(120)
    with torch.no_grad():
        expected = hf_model(torch.tensor([text])).logits[0]
    assert is_lean(hf_model.config)
    for model in (lean(hf_model), general(hf_model)):
        assert isinstance(model, CachedModel)
        torch.testing.assert_close(model.prefill(text[:50]), expected[49:50], atol=1e-4, rtol=0)
        torch.testing.assert_close(model.extend(text[50:57]), expected[50:57], atol=1e-4, rtol=0)
        model.extend(ids(20, seed=7))
        model.rewind(57)
        assert model.length == 57
        torch.testing.assert_close(model.extend(text[57:]), expected[57:], atol=1e-4, rtol=0)


def test_a_prompt_costs_the_head_of_one_row():
    """Of a long prompt and many words the logits of all rows would take gigabytes."""
    hf_model, rows = random_model(CONFIGS["llama"]), []
    hf_model.lm_head.register_forward_hook(lambda module, given, out: rows.append(out.shape[-2]))
    model = general(hf_model)
    model.prefill(ids(50))
    model.extend([1, 2, 3])
    assert rows == [1, 3]


def test_the_general_engine_says_where_rows_depend_on_their_company():
    hf_model = random_model(CONFIGS["llama"])
    alone, other = general(hf_model), general(hf_model)
    forward = hf_model.forward
    other.module = lambda **given: forward(**given)  # of several rows slightly other logits than of one
    other.module.config = hf_model.config
    head = hf_model.lm_head.forward
    hf_model.lm_head.forward = lambda x: head(x) + 1e-6 * x.shape[-2]
    other.set_threads(1)
    assert other.note == PARTS and other.length == 0
    hf_model.lm_head.forward = lambda x: torch.zeros(*x.shape[:-1], 128)
    alone.set_threads(1)
    assert alone.note is None and alone.info.threads == 1


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("name", ["llama", "llama-grouped", "llama-joined", "llama-one-kv-head", "qwen3"])
def test_a_row_does_not_depend_on_how_many_rows_are_read_with_it(name, weights):
    model = lean(random_model(CONFIGS[name]), weights)
    text = ids(80, seed=3)
    for start in (1, 60, 64, 130):
        model.prefill(ids(start))
        single = torch.cat([model.extend([token]) for token in text])
        for n in (2, 3, 4, 5, 6, 9, 17, 21, 32, 33, 65, 80):
            model.rewind(start)
            assert torch.equal(model.extend(text[:n]), single[:n]), (start, n)


def test_forks_share_weights_and_no_cache():
    model = lean(random_model(CONFIGS["llama-grouped"]))
    texts = [[5, 9, 2, 7, 7, 1], [3, 3, 8, 0, 11, 4]]
    alone = []
    for text in texts:
        model.prefill(text[:3])
        alone.append(model.extend(text[3:]))
    model.prefill(texts[0][:3])
    other = model.fork()
    assert other.blocks is model.blocks and other.length == 0
    other.prefill(texts[1][:3])
    for step in range(3, 6):  # in turns
        for reader, text, rows in zip((model, other), texts, alone, strict=True):
            assert torch.equal(reader.extend([text[step]])[0], rows[step - 3])
    other.rewind(1)
    assert (model.length, other.length) == (6, 1)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("make", [RowAttention, make_attention])
def test_a_long_context_takes_memory_only_where_it_is_written(make):
    shape = CacheShape(8, 4, 4, 64, 65_536, torch.bfloat16, torch.device("cpu"))
    whole = 2 * shape.n_layers * shape.n_kv_heads * shape.head_dim * shape.max_length * 2
    before = resident_bytes()
    attention = make(shape)
    assert resident_bytes() - before < whole / 20
    rows = torch.ones(5, 4, 64, dtype=torch.bfloat16)
    seen = attention.attend(3, torch.cat([rows, rows, 2 * rows], 1), attention.plan(0, 5))
    assert seen.shape == (5, 256) and torch.all(seen == 2)


def test_what_exceeds_the_limits_is_refused_in_a_sentence():
    hf_model = random_model(CONFIGS["llama"])
    for model in (lean(hf_model), general(hf_model)):
        with pytest.raises(UserError, match="gives no tokens: type a question"):
            model.prefill([])
        with pytest.raises(UserError, match="context ends at 256"):
            model.prefill(ids(257))
        model.prefill(ids(256))
        with pytest.raises(UserError, match="context ends at 256"):
            model.extend([1])
        with pytest.raises(ValueError, match="cannot rewind"):
            model.rewind(257)


def test_opt_with_its_learned_positions_runs_on_the_general_engine():
    shape = dict(hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=64)
    config = OPTConfig(vocab_size=128, max_position_embeddings=128, **shape)
    hf_model = random_model(config)
    assert not is_lean(config)
    check_rewindable(hf_model)
    model, text = general(hf_model), ids(30)
    with torch.no_grad():
        expected = hf_model(torch.tensor([text])).logits[0]
    model.prefill(text[:9])
    model.extend(ids(5, seed=4))
    model.rewind(9)
    torch.testing.assert_close(model.extend(text[9:]), expected[9:], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "config",
    [
        MptConfig(vocab_size=128, d_model=32, n_heads=2, n_layers=1, max_seq_len=12),
        lean_config(LlamaConfig, rope_parameters=LONGROPE | {"original_max_position_embeddings": 12}),
    ],
)
def test_a_context_ends_where_the_family_needs_it_to(config):
    model = general(random_model(config))
    model.prefill(ids(12))
    with pytest.raises(UserError, match="context ends at 12"):
        model.extend([1])


def test_rotary_angles_that_depend_on_the_text_s_length_are_left_to_transformers():
    config = lean_config(LlamaConfig)
    assert is_lean(config)
    config.rope_parameters = LONGROPE
    assert not is_lean(config)


@pytest.mark.parametrize("engine, tolerance", [(lean, 1e-6), (fixed, 1e-4)])
def test_a_reduced_head_gives_the_whole_heads_logits_for_its_own_tokens_and_those_of_the_text(engine, tolerance):
    hf_model, kept = random_model(CONFIGS["llama-one-kv-head"]), np.arange(3, 128, 5)
    model, whole = engine(hf_model, head_ids=torch.from_numpy(kept)), lean(hf_model)

    def compare(found, expected, texts):
        for row, other, text in zip(all_rows(model, found), expected.numpy(), texts, strict=True):
            known = np.union1d(kept, text)
            np.testing.assert_allclose(row[known], other[known], atol=tolerance, rtol=tolerance)
            assert (np.delete(row, known) == OUTSIDE).all()

    prompt = [7, 8, 9, 8, 21]
    compare(model.prefill(prompt), whole.prefill(prompt), [prompt])
    assert model.head_ids.tolist() == [*kept, 7, 9, 21]  # 8 is in the head
    text = [*prompt, 30, 7, 31]
    compare(model.extend(text[5:]), whole.extend(text[5:]), [text[:6], text[:7], text])
    for one in (model, whole):
        one.rewind(6)
    compare(model.extend([5, 6]), whole.extend([5, 6]), [[*text[:6], 5], [*text[:6], 5, 6]])
    compare(model.prefill([5]), whole.prefill([5]), [[5]])


def test_a_reduced_head_in_int8_gives_the_same_logits_for_its_own_tokens():
    hf_model, kept = random_model(CONFIGS["llama-one-kv-head"]), torch.arange(3, 128, 5)
    model, whole = lean(hf_model, head_ids=kept, weights="int8"), lean(hf_model, weights="int8")
    found, expected = model.prefill([3, 8]), whole.prefill([3, 8])[:, kept]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def test_of_a_reduced_head_a_rows_bits_do_not_depend_on_the_rows_and_tokens_after_it():
    model, text = lean(random_model(CONFIGS["llama"]), head_ids=torch.arange(3, 128, 5)), ids(20)
    other = model.fork()
    model.prefill([7, 9])
    other.prefill([1])
    assert model.head_ids.tolist()[-2:] == [7, 9]  # the text of its own cache
    model.prefill(text[:1])
    other.prefill(text[:1])
    at_once = all_rows(model, model.extend(text[1:]))
    one_by_one = np.concatenate([all_rows(other, other.extend([token])) for token in text[1:]])
    np.testing.assert_array_equal(at_once, one_by_one)


def test_a_reduced_head_takes_no_more_tokens_of_a_text_than_it_has_rows_for(monkeypatch):
    monkeypatch.setattr(text_tokens, "MOST", 2)
    model = lean(random_model(CONFIGS["llama"]), head_ids=torch.tensor([3]))
    model.prefill([5, 6, 7])
    assert model.extend([8]).shape == (1, 3) and model.head_ids.tolist() == [3, 5, 6]


@pytest.mark.parametrize("planned", [False, True])
def test_a_step_on_the_device_with_a_reduced_head_names_one_of_all_tokens(planned):
    model = fixed(random_model(CONFIGS["llama"]), head_ids=torch.arange(3, 128, 5))
    for prompt in ids(9), [1, 2, 4], [6, 7, 9, 11]:
        model.prefill(prompt)
        choice = model.head_ids[int(model.extend([5])[-1].argmax())]
        assert (model.text_tokens.places[len(model.text_tokens.ids) :] == 128).all()  # none is left of another text
        model.rewind(len(prompt))
        assert (model.draft_planned([5], 1, 128)[0] if planned else model.draft_step([5], 128).token) == choice


# -- a row's bits and logits in float32: neither is claimed if it does not hold

# Many inputs to a layer's last product: oneDNN then sums a single row in another order.
WIDE = lean_config(intermediate_size=2048, num_hidden_layers=4)
FORMS = ["float32", "bfloat16", "float16"]


@pytest.mark.parametrize("weights", [*FORMS, "int4"])
def test_a_lone_row_of_many_inputs_keeps_its_bits(weights):
    model = lean(random_model(WIDE), weights)
    text = ids(17, seed=4)
    model.prefill(ids(30))
    together = model.extend(text)
    model.rewind(30)
    assert torch.equal(torch.cat([model.extend([token]) for token in text]), together)
    assert keeps_bits(model)


class TwoKernels(Linear):
    """Has another kernel for 1 and 2 rows, for the last two of 7 and of 32."""

    n_out, n_in, dtype, bias = 8, 16, torch.float32, None

    def __init__(self) -> None:
        self.weight = torch.randn(16, 8, generator=torch.Generator().manual_seed(3))

    def product(self, x):
        y = x @ self.weight
        y[{1: 0, 2: 0, 7: 5, 32: 30}.get(len(x), len(x)) :] *= 1 + 1e-6
        return y


class LargerKernel(TwoKernels):
    """Has other kernels for one row, and from 16 on, as MKL on a CPU with AVX512."""

    def product(self, x):
        n = len(x)
        return (x @ self.weight) * (1 + 1e-6 * (n == 1) + 2e-6 * (n > 15))


class LongKernel(TwoKernels):
    """Has another kernel from 33 rows on, as oneDNN on a CPU with AMX."""

    def product(self, x):
        return (x @ self.weight) * (1 + 1e-6 * (len(x) > 32))


KERNELS = {  # padding that these need, and the most rows of a product
    "for some numbers": (TwoKernels, {1: 3, 2: 3, 7: 8}, TESTED_ROWS),
    "from 16": (LargerKernel, {1: 2}, 15),
    "from 33": (LongKernel, {}, TESTED_ROWS),
}


@pytest.mark.parametrize(("kernel", "padded", "most"), KERNELS.values(), ids=KERNELS)
def test_rows_are_padded_or_taken_in_parts_where_their_number_has_a_kernel_of_its_own(kernel, padded, most):
    linear = kernel()
    pad_rows([linear])
    assert (linear.padded, linear.most) == (padded, most)
    x = torch.randn(80, 16, generator=torch.Generator().manual_seed(4))
    whole = linear.in_parts(x)
    for n in range(1, 81):
        assert torch.equal(linear.in_parts(x[:n]), whole[:n]), n


class TwoEnds(DenseLinear):
    """Has other kernels for one row, and from 33 rows on."""

    def product(self, x):
        return super().product(x) * (1 + 1e-6 * (len(x) == 1) + 2e-6 * (len(x) > 32))

    plus = Linear.plus


def test_a_check_is_cut_and_a_lone_row_padded_where_they_have_other_bits(monkeypatch):
    """The self-test of a whole model sees where either is not done."""
    monkeypatch.setattr(type(find_format("float32")), "linear", lambda self, weight, bias: TwoEnds(weight))
    model = lean(random_model(CONFIGS["llama"]))
    assert keeps_bits(model)
    cut, model._most_rows = model._most_rows, MAX_ROWS
    assert not keeps_bits(model)
    model._most_rows = cut
    for block in model.blocks:
        for product in PRODUCTS:
            getattr(block, product).padded = {}
    assert not keeps_bits(model)


def test_a_shape_is_tested_once_for_each_number_of_threads(monkeypatch):
    tested, before, alone = [], torch.get_num_threads(), Company({})
    monkeypatch.setattr("decoding.engines.invariance._company_of", lambda linear: tested.append(linear) or alone)
    monkeypatch.setattr(type(find_format("float32")), "linear", lambda self, weight, bias: DenseLinear(weight, bias))
    model = lean(random_model(WIDE))
    assert len({(linear.n_out, linear.n_in) for linear in tested}) == len(tested) > 3
    n = len(tested)
    for threads, times in zip(on_threads(before, before + 1, before), (1, 2, 2)):
        model.set_threads(threads)
        assert len(tested) == times * n


@pytest.mark.parametrize("weights", FORMS)
def test_logits_leave_the_head_in_float32(weights):
    model = lean(random_model(WIDE), weights)
    model.kept_layers = FINAL
    logits = model.prefill(ids(40))
    assert logits.dtype == torch.float32
    assert (logits != logits.bfloat16()).float().mean() > 0.9  # finer than bfloat16's resolution
    weight = random_model(WIDE).lm_head.weight.detach()
    weight, state = weight.to(getattr(torch, weights)).float(), model.last_states[0][-1:].float()
    with torch.inference_mode():
        if weights == "bfloat16" and find_format(weights).is_fast_here():  # this CPU multiplies what is rounded
            state = state.bfloat16().float()
        torch.testing.assert_close(logits, state @ weight.T, atol=2e-5, rtol=1e-5)
