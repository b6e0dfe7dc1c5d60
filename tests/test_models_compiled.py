"""What is compiled: sums in the order of the inputs, for any number of rows, outputs, inputs, keys and threads."""

from __future__ import annotations

import builtins
from types import SimpleNamespace

import llvmlite.binding as llvm
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding import cpu
from decoding.engines.attention import MAX_ROWS, CacheShape, CompiledAttention
from decoding.engines.compiled import _made, products, readout, writer
from decoding.engines.compiled.attention import AttentionWriter, attention_kernel
from decoding.engines.compiled.layers import LayersWriter
from decoding.engines.compiled.products import MOST_OF_PAIRS, ProductWriter, product_of
from decoding.engines.compiled.readout import RefinementWriter
from decoding.engines.compiled.writer import Cpu
from decoding.engines.formats import find_format
from decoding.engines.formats.int8 import round_rows
from decoding.engines.inputs import Branches
from decoding.engines.linears import CompiledLinear
from decoding.engines.projections import Projections
from tests.lean_models import CONFIGS, compiled, ids, lean, on_threads, random_model

DTYPES = (torch.int8, torch.float16, torch.bfloat16, torch.float32)

HELD = {  # a weight as a format holds it
    "int8": lambda weight: torch.mul(*(one.view(len(weight), -1) for one in round_rows(weight))),
    "float16": lambda weight: weight.half().float(),
    "bfloat16": lambda weight: weight.bfloat16().float(),
    "float32": lambda weight: weight,
}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def as_read(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The rows that weights of ``dtype`` meet: rounded to pairs of bfloat16 numbers where this CPU multiplies these."""
    return x.bfloat16().float() if product_of(dtype).inputs == 2 else x


def summed_in_order(x: torch.Tensor, weight: torch.Tensor) -> np.ndarray:
    """Each step is rounded once, as a fused multiply-add: float64 holds a product of float32 numbers exactly."""
    sums = np.zeros((len(x), len(weight)), np.float32)
    for k in range(x.shape[1]):
        exact = x[:, k : k + 1].double().numpy() * weight[:, k].double().numpy() + sums.astype(np.float64)
        sums = exact.astype(np.float32)
    return sums


@compiled
def test_what_this_cpu_can_have_it_has():
    assert None not in (*map(product_of, DTYPES), attention_kernel(), readout.readout())


@compiled
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_are_those_of_fused_steps_in_the_order_of_the_inputs(dtype):
    weight, x, scales = (9 * random(224, 40)).to(dtype), random(9, 40, seed=1), random(224, seed=2)
    product = product_of(dtype)
    packed = product.pack(weight)
    found = product(F.pad(x, (0, product.inputs * packed.shape[1] - 40)), packed, scales).numpy()
    expected = summed_in_order(as_read(x, dtype), weight)  # float64 rounds twice: it differs once in some million steps
    if dtype == torch.int8:
        expected = expected * scales.numpy()
    if product.inputs == 2:  # how a CPU adds the products of a pair is its own
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    else:
        assert (found == expected).mean() > 0.999


@compiled
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 2 * MOST_OF_PAIRS),
    outputs=st.integers(1, 150),
    inputs=st.integers(1, 70),
    name=st.sampled_from(list(HELD)),
)
def test_a_row_has_the_same_bits_in_any_company(rows, outputs, inputs, name):
    weight, x, bias = random(outputs, inputs), random(rows, inputs, seed=1), random(outputs, seed=2)
    linear = find_format(name).linear(weight, bias)
    assert isinstance(linear, CompiledLinear)
    together = linear(x)
    assert together.shape == (rows, outputs)
    read = as_read(x, torch.bfloat16) if name == "bfloat16" else x
    torch.testing.assert_close(together, read @ HELD[name](weight).T + bias, rtol=1e-4, atol=1e-4)
    assert torch.equal(together, torch.cat([linear(x[:0]), *(linear(row[None]) for row in x)]))
    assert torch.equal(together, linear(random(inputs, rows).T.copy_(x)))  # whose rows are not contiguous


@compiled
def test_another_default_dtype_changes_nothing_and_other_inputs_are_refused():
    weight, x = random(32, 16), random(3, 16, seed=1)
    product = product_of(torch.float32)
    packed = product.pack(weight)
    expected = product(x, packed)
    torch.set_default_dtype(torch.bfloat16)  # as transformers does while it builds a model, in all threads
    try:
        assert torch.equal(product(x, packed), expected)
    finally:
        torch.set_default_dtype(torch.float32)
    for other in (x.bfloat16(), x[:, :8]):
        with pytest.raises(ValueError, match="rows of 16 float32 numbers"):
            product(other, packed)


@compiled
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_share_a_large_product_and_change_no_bit(dtype):
    weight, x, scales = (9 * random(1100, 256)).to(dtype), random(7, 256, seed=1), torch.ones(1120)
    product = product_of(dtype)
    packed = product.pack(weight)
    found = [product(x, packed, scales) for _ in on_threads(1, 2, 3, 8)]
    assert all(torch.equal(one, found[0]) for one in found)


@pytest.fixture
def anew(monkeypatch):
    """What is compiled is forgotten before and after a test."""
    _made.cache_clear()
    yield monkeypatch
    _made.cache_clear()


def test_without_llvm_other_products_serve(anew, caplog):
    imports = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("llvmlite"):
            raise ImportError("no llvmlite")
        return imports(name, *args, **kwargs)

    anew.setattr(builtins, "__import__", refuse)
    weight, x = random(32, 16), random(3, 16, seed=1)
    if cpu.imitated() != "plain":
        assert product_of(torch.float32) is None and "nothing is compiled, so that models are slower" in caplog.text
    for name, held in HELD.items():
        linear = find_format(name).linear(weight, None)
        assert not isinstance(linear, CompiledLinear)
        y, plain = linear(x.to(linear.dtype)), x.to(linear.dtype).float() @ held(weight).T
        torch.testing.assert_close(y, plain.to(linear.dtype), rtol=1e-5, atol=1e-5)
    assert attention_kernel() is readout.readout() is None


@compiled
def test_code_that_computes_something_else_is_not_used(anew, caplog):
    packed = products.Product.pack
    anew.setattr(products.Product, "pack", lambda self, weight: packed(self, weight.flip(1)))
    anew.setattr(writer, "_LOG2E", 1.0)
    assert product_of(torch.float16) is attention_kernel() is readout.readout() is None
    assert caplog.text.count("wrong on this CPU") == 3


@pytest.mark.parametrize("missing", ["f16c", "fma", "avx2"])
def test_a_cpu_that_cannot_widen_float16_has_none(anew, missing):
    has = dict(llvm.get_host_cpu_features()) | {missing: False}
    anew.setattr("platform.machine", lambda: "x86_64")

    def unknown():
        raise RuntimeError("LLVM cannot tell")

    for found in (lambda: has, unknown):
        anew.setattr(llvm, "get_host_cpu_features", found)
        _made.cache_clear()
        assert product_of(torch.float16) is attention_kernel() is None


def test_the_least_cpu_has_nothing_compiled(anew):
    anew.setenv(cpu.IMITATED, "plain")
    assert product_of(torch.float16) is attention_kernel() is readout.readout() is None


HEADS, KV_HEADS, D = 6, 2, 48


def read(model: CompiledAttention, heads: torch.Tensor, start: int, branches: Branches | None = None) -> torch.Tensor:
    return model.attend(0, heads, model.plan(start, len(heads), branches))


def attention_of(max_length: int) -> CompiledAttention:
    shape = CacheShape(1, HEADS, KV_HEADS, D, max_length, torch.float32, torch.device("cpu"))
    return CompiledAttention(shape, attention_kernel())


def exact_attention(heads: torch.Tensor) -> torch.Tensor:
    heads = heads.double().transpose(0, 1)
    query, others = heads[:HEADS], heads[HEADS:].repeat_interleave(HEADS // KV_HEADS, 0)
    hidden = torch.ones(heads.shape[1], heads.shape[1], dtype=torch.bool).triu(1)
    scores = (query @ others[:HEADS].transpose(1, 2) / D**0.5).masked_fill(hidden, float("-inf"))
    return (torch.softmax(scores, -1) @ others[HEADS:]).transpose(0, 1).flatten(1)


@compiled
@settings(max_examples=40, deadline=None)
@given(length=st.integers(1, 150), cuts=st.lists(st.integers(1, 149)), scale=st.sampled_from([0.01, 1.0, 3.0]))
def test_attention_is_torchs_and_a_rows_bits_do_not_depend_on_its_pass(length, cuts, scale):
    heads = scale * random(length, HEADS + 2 * KV_HEADS, D)
    one, other, ends = (
        attention_of(150),
        attention_of(150),
        sorted({*(cut for cut in cuts if cut < length), *range(MAX_ROWS, length, MAX_ROWS), length}),
    )
    exact = exact_attention(heads).float()
    alone = torch.cat([read(one, heads[row : row + 1], row) for row in range(length)])
    torch.testing.assert_close(alone, exact, rtol=1e-4, atol=1e-4 * scale)
    parts = [read(other, heads[first:end], first) for first, end in zip([0, *ends], ends)]
    assert torch.equal(torch.cat(parts), alone)
    torch.testing.assert_close(read(one, heads, 0), exact, rtol=1e-4, atol=1e-4 * scale)


@compiled
def test_a_path_of_a_tree_is_read_as_a_plain_text():
    trunk, heads = 37, random(37 + 40, HEADS + 2 * KV_HEADS, D)
    parents = [-1, 0, 0, -1, 1, 3, 4, 2, 6, 8, *range(9, 39)]  # its longest path goes on beyond a block of keys
    model, plain = attention_of(100), attention_of(100)
    for one in (model, plain):
        read(one, heads[:trunk], 0)
    branches = Branches.below(trunk, parents)
    tree = torch.cat(
        [
            read(model, heads[trunk : trunk + 5], trunk, branches.part(0, 5)),  # in two passes
            read(model, heads[trunk + 5 :], trunk + 5, branches.part(5, 40)),
        ]
    )
    for node in (0, 3, 4, 5, 7, 39):
        path = branches.paths[node]
        assert torch.equal(read(plain, heads[path], trunk)[-1], tree[node])
    moved = branches.paths[39]
    model.move(moved[1:], trunk + 1)
    after = random(2, HEADS + 2 * KV_HEADS, D, seed=4)
    assert torch.equal(*(read(one, after, trunk + len(moved)) for one in (model, plain)))


@compiled
def test_threads_share_the_rows_and_heads_of_attention():
    heads, found = random(260, HEADS + 2 * KV_HEADS, D), []
    for _ in on_threads(1, 2, 7):
        model = attention_of(260)
        read(model, heads[:200], 0)
        found.append(read(model, heads[200:], 200))
    assert all(torch.equal(one, found[0]) for one in found)


JOINED = {"llama-joined", "llama-grouped", "qwen3-joined"}  # the last two with biases, and with norms of heads


@compiled
@pytest.mark.parametrize("weights", HELD)
@pytest.mark.parametrize("name", sorted(JOINED))
def test_all_layers_in_one_call_are_the_layers_one_by_one(name, weights):
    model = lean(random_model(CONFIGS[name]), weights)
    single = model.fork()
    assert model._joined is not None and single._joined is not None
    single._joined = None
    rounds = weights == "bfloat16" and product_of(torch.bfloat16).inputs == 2  # activations, so that one may fall apart
    most = 2e-2 if rounds else 1e-4
    for threads in on_threads(1, 2, 7):
        model.info.threads = threads  # the other's, too
        for one in (model, single):
            one.kept_layers = (0, 1, -1)
            one.prefill(ids(70))
        torch.testing.assert_close(model.extend(ids(40)), single.extend(ids(40)), rtol=0, atol=most)
        torch.testing.assert_close(model.last_states, single.last_states, rtol=0, atol=most)


@compiled
@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 127), min_size=1, max_size=30), st.sampled_from((1, 2, 7)))
def test_the_head_of_a_draft_is_read_at_the_end_of_the_call(drawn, threads):
    model = lean(random_model(CONFIGS["llama-joined"]), head_ids=torch.arange(0, 128, 4))
    single = model.fork()
    single._joined, model.info.threads = None, threads
    for _ in on_threads(threads):
        for one in (model, single):
            one.prefill([3, 5])
        for new in (drawn, drawn[:1]):  # the second time all its tokens have been seen
            logits, expected = model.extend(new), single.extend(new)
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
            assert model.head_ids.tolist() == single.head_ids.tolist() and single.likeliest is None
            assert (model.likeliest is None) == (len(new) > 1)
    row = logits[-1]
    assert row[model.likeliest.token] == row.max()
    p = row.double().softmax(0)
    assert model.likeliest.p == pytest.approx(float(p.max()), rel=1e-5)
    assert model.likeliest.entropy == pytest.approx(float(-(p * p.log()).sum()), abs=1e-4)
    (first, second, third), (_, rival, _) = (one.tolist() for one in row.topk(3))
    assert model.likeliest.margin == pytest.approx(first - second, abs=1e-5)
    assert model.likeliest.rival == rival and model.likeliest.beyond == pytest.approx(first - third, abs=1e-5)


@compiled
@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=70))
def test_of_equally_likely_tokens_the_first_is_chosen(numbers):
    row = np.array(numbers, dtype=np.float32)
    assert readout.readout().choose(row) == row.argmax()
    assert readout.readout().choose(row * np.float32(np.nan)) == 0  # one, all the same


def projections(weights: str) -> Projections:
    """Of the states of three layers, 64 wide."""
    shapes = {"fuse.weight": (64, 192), "scale": (192,), "centre": (192,)}
    shapes |= {"own.weight": (64, 64), "own_scale": (64,), "own_centre": (64,)}
    given = {name: random(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    return Projections(given, 3, 64, torch.device("cpu"), torch.float32, find_format(weights).linear)


@compiled
@pytest.mark.parametrize("weights", HELD)
def test_what_is_made_of_hidden_states_in_one_call_is_made_step_by_step(weights):
    made = projections(weights)
    each = (
        (made._joined_target, made._fused, random(3, 9, 64, seed=7)),
        (made._joined_own, made._owned, random(1, 9, 64, seed=8)),
    )
    rounds = weights == "bfloat16" and product_of(torch.bfloat16).inputs == 2
    for _ in on_threads(1, 2, 7):
        for joined, plain, states in each:
            torch.testing.assert_close(joined(*states), plain(*states), rtol=0, atol=5e-2 if rounds else 1e-3)
            assert torch.equal(torch.cat([joined(*row) for row in states.split(1, 1)]), joined(*states))


@compiled
@pytest.mark.parametrize("token", [-1, 128])
def test_an_id_without_an_embedding_is_refused(token):
    model = lean(random_model(CONFIGS["llama-joined"]))
    model.prefill([3, 5])
    with pytest.raises(IndexError):
        model.extend([7, token])


@compiled
def test_layers_with_other_steps_run_one_by_one():
    joined = {name for name, config in CONFIGS.items() if lean(random_model(config))._joined is not None}
    assert joined == JOINED


@compiled
def test_layers_and_projections_that_compute_something_else_are_not_used(anew, caplog):
    anew.setattr(LayersWriter, "_gate", lambda self, blocks: None)
    anew.setattr(LayersWriter, "_project", lambda self: self.entry("project", [], []) and self.b.ret_void())
    made = projections("float32")
    assert lean(random_model(CONFIGS["llama-joined"]))._joined is made._joined_target is made._joined_own is None
    assert "compiled layers are wrong" in caplog.text and caplog.text.count("compiled projection is wrong") == 2


LINUX = "x86_64-unknown-linux-gnu"
CPUS = {  # and the multiply-adds that must be there
    "AVX2": (Cpu(LINUX, "x86-64-v3", "", False, False, False), "vfmadd231ps\t%ymm"),
    "AVX512": (Cpu(LINUX, "x86-64-v4", "", True, False, False), "vfmadd231ps\t%zmm"),
    "AVX512-BF16": (Cpu(LINUX, "cooperlake", "", True, True, False), "vdpbf16ps"),
    "ARM": (Cpu("aarch64-unknown-linux-gnu", "generic", "", False, False, False), "fmla\tv"),
    "macOS": (Cpu("arm64-apple-darwin", "apple-m1", "", False, False, False), "fmla.4s"),
}


PARTS = (*DTYPES, "attention", "layers", "readout", "screening")
KINDS = [(name, kind) for name in CPUS for kind in PARTS if name != "AVX512-BF16"]


@pytest.mark.parametrize(("name", "kind"), [*KINDS, ("AVX512-BF16", torch.bfloat16)], ids=str)
def test_the_code_of_every_cpu_multiplies_vectors_and_calls_nothing(name, kind):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    there, wanted = CPUS[name]
    if kind == "attention":
        written = AttentionWriter(there)
    elif kind == "readout":
        written = readout.ReadoutWriter(there)
    elif kind == "layers":
        multiply, refine, *others = (SimpleNamespace(address=address) for address in range(1, 7))
        product = SimpleNamespace(function=multiply, lanes=16)
        attends, reads = (SimpleNamespace(functions=two) for two in (others[:2], others[2:]))
        written = LayersWriter(there, product, attends, reads, SimpleNamespace(function=refine))
    elif kind == "screening":
        written = RefinementWriter(there)
    else:
        written = ProductWriter(there, kind)
    module = llvm.parse_assembly(written.code())
    module.verify()
    code = llvm.Target.from_triple(there.triple).create_target_machine(cpu=there.name, opt=3).emit_assembly(module)
    assert wanted in code and not any(called in code for called in ("hfsf2", "h2f_ieee", "fmaf", "floorf", "sqrtf"))
