"""A row's bits do not depend on the other rows, logits are float32, and neither is claimed if it does not hold."""

import pytest
import torch

from decoding.engines.inputs import FINAL
from decoding.engines.invariance import keeps_bits, pad_rows
from decoding.engines.lean import LeanModel
from decoding.engines.linears import PackedLinear, UnfusedLinear
from tests.lean_models import ids, lean, lean_config, random_model

pytestmark = pytest.mark.usefixtures("all_cores")

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


def test_padding_is_given_where_bits_differ_and_nowhere_else():
    generator = torch.Generator().manual_seed(0)
    wide, narrow = (PackedLinear(torch.randn(64, n, generator=generator)) for n in (2048, 64))
    lone = torch.randn(17, 2048, generator=generator)
    agree = torch.equal(wide(lone[:1]), wide(lone)[:1])  # if this machine's kernels agree, nothing needs correction
    pad_rows([wide, narrow])
    assert (wide.padded, narrow.padded) == ({} if agree else {1: 2}, {})
    other = torch.randn(17, 64, generator=generator)
    for product in (wide, wide.silu, lambda x: wide.times(x, other[: len(x)]), lambda x: wide.plus(x, other[: len(x)])):
        assert torch.equal(product(lone[:1]), product(lone)[:1])


class TwoKernels(UnfusedLinear):
    """Has another kernel for 1 and 2 rows, for the last two of 7 and of 32, as FBGEMM on a CPU with AVX2 alone."""

    n_out, n_in, dtype, bias = 8, 16, torch.float32, None

    def __init__(self) -> None:
        self.weight = torch.randn(16, 8, generator=torch.Generator().manual_seed(3))

    def product(self, x):
        y = x @ self.weight
        y[{1: 0, 2: 0, 7: 5, 32: 30}.get(len(x), len(x)) :] *= 1 + 1e-6
        return y


def test_every_number_of_rows_with_a_kernel_of_its_own_is_padded():
    linear = TwoKernels()
    pad_rows([linear])
    assert linear.padded == {1: 3, 2: 3, 7: 8}
    x = torch.randn(80, 16, generator=torch.Generator().manual_seed(4))
    assert all(torch.equal(linear(x[:n]), linear(x)[:n]) for n in (*range(1, 9), 24, 25, 26, 31, 32, 55, 80))
    assert all(linear.silu(x[:n]).shape == (n, 8) for n in range(1, 9))


def test_a_shape_is_tested_once_for_each_number_of_threads(monkeypatch):
    tested, before = [], torch.get_num_threads()
    monkeypatch.setattr("decoding.engines.invariance._least_padding", lambda linear: tested.append(linear) or {})
    model = lean(random_model(WIDE))
    assert len({(linear.n_out, linear.n_in) for linear in tested}) == len(tested) > 3
    n = len(tested)
    try:
        for threads, times in ((before, 1), (before + 1, 2), (before, 2)):
            model.set_threads(threads)
            assert len(tested) == times * n
    finally:
        torch.set_num_threads(before)


def test_the_self_test_sees_a_model_whose_rows_depend_on_their_company():
    class Sociable(LeanModel):
        def _embed(self, ids):
            return super()._embed(ids) * (1.0 + 1e-6 * (len(ids) > 1))

    model = lean(random_model(WIDE))
    assert keeps_bits(model)
    model.__class__ = Sociable
    assert not keeps_bits(model)


@pytest.mark.parametrize("weights", FORMS)
def test_logits_leave_the_head_in_float32(weights):
    model = lean(random_model(WIDE), weights)
    model.kept_layers = FINAL
    logits = model.prefill(ids(40))
    assert logits.dtype == torch.float32
    assert (logits != logits.bfloat16()).float().mean() > 0.9  # finer than bfloat16's resolution
    weight = random_model(WIDE).lm_head.weight.detach()
    weight = weight.to(getattr(torch, weights)).float()
    with torch.inference_mode():
        torch.testing.assert_close(logits, model.last_states[0][-1:].float() @ weight.T, atol=2e-5, rtol=1e-5)
