"""The compiled products: their sums in the order of the inputs, for any number of rows, outputs, inputs and threads."""

from __future__ import annotations

import builtins

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding import cpu
from decoding.engines import kernel
from decoding.engines.formats import find_format
from decoding.engines.formats.int8 import round_rows
from decoding.engines.kernel import LANES, MOST_ROWS, pack, product_of, write_code
from decoding.engines.linears import CompiledLinear

compiled = pytest.mark.skipif(product_of(torch.float16) is None, reason="not run: this CPU has no compiled products")
DTYPES = (torch.int8, torch.float16, torch.float32)

HELD = {  # a weight as a format holds it
    "int8": lambda weight: torch.mul(*(one.view(len(weight), -1) for one in round_rows(weight))),
    "float16": lambda weight: weight.half().float(),
    "float32": lambda weight: weight,
}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def summed_in_order(x: torch.Tensor, weight: torch.Tensor) -> np.ndarray:
    """Each step is rounded once, as a fused multiply-add: float64 holds a product of float32 numbers exactly."""
    sums = np.zeros((len(x), len(weight)), np.float32)
    for k in range(x.shape[1]):
        exact = x[:, k : k + 1].double().numpy() * weight[:, k].double().numpy() + sums.astype(np.float64)
        sums = exact.astype(np.float32)
    return sums


@compiled
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_are_those_of_fused_steps_in_the_order_of_the_inputs(dtype):
    weight, x, scales = (9 * random(7 * LANES, 40)).to(dtype), random(9, 40, seed=1), random(7 * LANES, seed=2)
    found = product_of(dtype)(x, pack(weight), scales).numpy()
    expected = summed_in_order(x, weight)  # float64 rounds twice, which differs once in some million steps
    if dtype == torch.int8:
        expected = expected * scales.numpy()
    assert (found == expected).mean() > 0.999


@compiled
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 4 * MOST_ROWS),
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
    torch.testing.assert_close(together, x @ HELD[name](weight).T + bias, rtol=1e-4, atol=1e-4)
    assert torch.equal(together, torch.cat([linear(row[None]) for row in x]))
    assert torch.equal(together, linear(random(inputs, rows).T.copy_(x)))  # whose rows are not contiguous


@compiled
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_share_a_large_product_and_change_no_bit(dtype):
    weight, x, scales = (9 * random(1100, 256)).to(dtype), random(7, 256, seed=1), torch.ones(1104)
    product, packed, before = product_of(dtype), pack(weight), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = product(x, packed, scales)
        for threads in (2, 3, 8):
            torch.set_num_threads(threads)
            assert torch.equal(product(x, packed, scales), alone)
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def anew(monkeypatch):
    """What is compiled is forgotten before and after a test."""
    kernel._product_for.cache_clear()
    yield monkeypatch
    kernel._product_for.cache_clear()


def test_without_llvm_other_products_serve(anew):
    imports = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("llvmlite"):
            raise ImportError("no llvmlite")
        return imports(name, *args, **kwargs)

    anew.setattr(builtins, "__import__", refuse)
    weight, x = random(32, 16), random(3, 16, seed=1)
    for name, held in HELD.items():
        linear = find_format(name).linear(weight, None)
        assert not isinstance(linear, CompiledLinear)
        torch.testing.assert_close(linear(x), x @ held(weight).T, rtol=1e-5, atol=1e-5)


@compiled
def test_a_kernel_that_computes_something_else_is_not_used(anew, caplog):
    inputs = kernel.pack
    anew.setattr(kernel, "pack", lambda weight: inputs(weight.flip(1)))
    assert product_of(torch.float16) is None and "wrong on this CPU" in caplog.text


@pytest.mark.parametrize("missing", ["f16c", "fma", "avx2"])
def test_a_cpu_that_cannot_widen_float16_has_none(anew, missing):
    binding = pytest.importorskip("llvmlite.binding")
    has = dict(binding.get_host_cpu_features()) | {missing: False}
    anew.setattr("platform.machine", lambda: "x86_64")
    anew.setattr(binding, "get_host_cpu_features", lambda: has)
    assert product_of(torch.float16) is None


def test_an_imitated_cpu_has_its_own(anew):
    anew.setenv(cpu.IMITATED, "plain")
    assert product_of(torch.float16) is None


CPUS = {  # triple, LLVM's name, sums in registers, and the multiply-adds that must be there
    "AVX2": ("x86_64-unknown-linux-gnu", "x86-64-v3", 4, "vfmadd231ps\t%ymm"),
    "AVX512": ("x86_64-unknown-linux-gnu", "x86-64-v4", 24, "vfmadd231ps\t%zmm"),
    "ARM": ("aarch64-unknown-linux-gnu", "generic", 4, "fmla\tv"),
    "macOS": ("arm64-apple-darwin", "apple-m1", 4, "fmla.4s"),
}


@pytest.mark.parametrize("name", CPUS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_code_of_every_cpu_multiplies_vectors_and_calls_nothing(name, dtype):
    llvm = pytest.importorskip("llvmlite.binding")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, cpu_name, sums, wanted = CPUS[name]
    module = llvm.parse_assembly(write_code(triple, dtype, sums, shared=False))
    module.verify()
    code = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu_name, opt=3).emit_assembly(module)
    assert wanted in code and not any(name in code for name in ("hfsf2", "h2f_ieee", "fmaf"))
