"""A number format is one file, found everywhere; which one a model runs in is measured on the machine at hand."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from decoding import cpu
from decoding.analysis import tuning
from decoding.analysis.tuning import format_here
from decoding.engines import choosing, formats
from decoding.engines.attention import RowAttention
from decoding.engines.choosing import draft_formats, fastest, target_formats
from decoding.engines.formats import all_formats, find_format
from decoding.engines.formats.int4 import Int4, round_to_groups
from decoding.engines.formats.int8 import Int8
from decoding.engines.invariance import keeps_bits
from decoding.engines.linears import DenseLinear, half_linear
from decoding.engines.threads import TARGET_ROWS, best_use
from decoding.errors import UserError
from decoding.records.machine import describe_machine
from decoding.records.request import CHOICES, FORMATS, CompareRequest, check_request
from tests.lean_models import CONFIGS, described, ids, lean, lean_config, random_model

pytestmark = pytest.mark.usefixtures("all_cores")

FILE = """
import torch
from decoding.engines.formats.float32 import Float32

class Sixth(Float32):
    name = "sixth"

FORMAT = Sixth()
"""


def names(found) -> list[str]:
    return [one.name for one in found]


def test_a_sixth_format_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "sixth.py").write_text(FILE)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    all_formats.cache_clear()
    try:
        assert find_format("sixth").compute == torch.float32
        assert "sixth" in names(target_formats("auto", "cpu", "bfloat16"))
        model = lean(random_model(CONFIGS["llama"]), "sixth")
        assert torch.equal(model.prefill(ids(5)), lean(random_model(CONFIGS["llama"])).prefill(ids(5)))
    finally:
        monkeypatch.undo()
        all_formats.cache_clear()


def test_what_must_not_import_torch_knows_the_same_names():
    assert set(FORMATS) == set(all_formats()) and CHOICES[0] == "auto"
    for name in FORMATS:
        check_request(CompareRequest("hello", dtype=name))
    with pytest.raises(UserError, match="Dtype must be one of auto, bfloat16, .*, not fp8"):
        check_request(CompareRequest("hello", dtype="fp8"))


DEVIATIONS = {  # from the logits in float32, as a share of their spread; of formats that are not named here, 0.3
    "float32": 0.0,
    "bfloat16": 0.03,
    "float16": 0.03,
    "int8": 0.05,
    "int4": 0.3,
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_runs_a_model_close_to_float32_with_rows_that_keep_their_bits(name):
    hf_model = random_model(lean_config(intermediate_size=128))  # divides into groups of four-bit weights
    model, text = lean(hf_model, name), ids(40)
    exact, found = lean(hf_model).prefill(text), model.prefill(text)
    assert (name != "float32") * 1e-9 <= (found - exact).std() / exact.std() <= DEVIATIONS.get(name, 0.3)
    assert keeps_bits(model)


@pytest.mark.parametrize("make", [lambda weight: find_format("float16").linear(weight.float(), None), half_linear])
def test_two_bytes_hold_a_bfloat16_checkpoint_but_for_the_smallest_numbers(make):
    weight = (torch.randn(500, 96, generator=torch.Generator().manual_seed(1)) * 0.05).bfloat16()
    unit = torch.eye(96)
    held = make(weight)(unit).T
    assert torch.equal(held[weight.abs() >= 2**-17], weight.float()[weight.abs() >= 2**-17])
    assert (held - weight.float()).abs().max() <= 2**-25
    beyond = weight * 1e8  # beyond float16: kept in float32
    assert torch.allclose(make(beyond)(unit).T, beyond.float(), rtol=1e-6)


def test_biases_and_sums_in_four_bits_are_those_of_the_plain_product():
    generator = torch.Generator().manual_seed(2)
    weight, bias, x, other = (torch.randn(*size, generator=generator) for size in ((48, 64), (48,), (5, 64), (5, 48)))
    linear, x, other = find_format("int4").linear(weight, bias), x.bfloat16(), other.bfloat16()
    y = linear(x)
    exact = torch.nn.functional.linear(x.float(), round_to_groups(weight).rounded().dequantised(), bias)
    torch.testing.assert_close(y.float(), exact, atol=0.1, rtol=0.02)
    torch.testing.assert_close(linear.plus(x, other), y + other, atol=1e-5, rtol=1e-5)


def test_without_llvm_plain_products_serve(monkeypatch):
    monkeypatch.setenv(cpu.IMITATED, "plain")
    for name in ("float32", "float16", "bfloat16"):
        model = lean(random_model(CONFIGS["llama"]), name)
        assert isinstance(model.blocks[0].qkv, DenseLinear) and isinstance(model.head.linear, DenseLinear)
        assert isinstance(model._attention, RowAttention)
        assert keeps_bits(model) or name == "bfloat16"  # plain bfloat16 products are only used if asked for


@pytest.mark.parametrize(
    ("imitated", "stored", "expected"),
    [
        ("avx2", "bfloat16", ["float16", "float32"]),
        ("avx512", "bfloat16", ["float16", "float32"]),
        ("avx2", "float16", ["float16", "float32"]),
        ("avx2", "float32", ["float32"]),
        ("plain", "bfloat16", ["float32"]),
    ],
)
def test_a_target_is_tried_in_what_holds_its_values_and_is_fast_here(monkeypatch, imitated, stored, expected):
    monkeypatch.setenv(cpu.IMITATED, imitated)
    assert names(target_formats("auto", "cpu", stored)) == expected
    assert names(target_formats("auto", "cuda:0", stored)) == ["bfloat16"]
    assert names(target_formats("int8", "cpu", stored)) == ["int8"]


def test_a_draft_may_also_run_rounded_as_its_pair_says(monkeypatch):
    monkeypatch.setattr(Int4, "is_fast_here", lambda self: True)
    monkeypatch.setattr(Int8, "is_fast_here", lambda self: True)
    exact = names(target_formats("auto", "cpu", "bfloat16"))
    assert names(draft_formats("auto", "auto", "auto", "cpu", "bfloat16")) == exact
    assert names(draft_formats("auto", "auto", "int4", "cpu", "bfloat16")) == ["int4", "int8", *exact]
    assert names(draft_formats("auto", "auto", "int8", "cpu", "bfloat16")) == ["int8", *exact]
    assert names(draft_formats("int4", "auto", "int8", "cpu", "bfloat16")) == ["int8", *exact]  # the target's alone
    assert names(draft_formats("float32", "auto", "int4", "cpu", "bfloat16")) == ["float32"]
    assert names(draft_formats("float32", "int4", "int8", "cpu", "bfloat16")) == ["int4"]
    assert names(draft_formats("float32", "trial", "int8", "cpu", "bfloat16")) == ["int8", *exact]
    assert names(draft_formats("auto", "float32", "int4", "cuda:0", "bfloat16")) == ["float32"]
    assert names(draft_formats("auto", "int4", "int4", "cuda:0", "bfloat16")) == ["bfloat16"]  # of a CPU
    assert names(draft_formats("auto", "auto", "int4", "cuda:0", "bfloat16")) == ["bfloat16"]
    monkeypatch.setattr(Int4, "is_fast_here", lambda self: False)  # products that are not vectorised are slow
    assert names(draft_formats("auto", "auto", "int4", "cpu", "bfloat16")) == ["int8", *exact]


@pytest.fixture
def timed(monkeypatch, own_costs):
    """Seconds that a trial finds for each format; every trial is noted."""
    seconds, trials = {"bfloat16": 1.0, "float16": 1.0, "float32": 1.0}, []

    def time_passes(models, rows, threads):
        trials.append(sorted(models))
        return {(name, count): dict.fromkeys(rows, seconds[name] / count) for name in models for count in threads}

    monkeypatch.setattr(choosing, "time_passes", time_passes)
    return seconds, trials


def choose(hf_model, *wanted):
    formats = [find_format(name) for name in wanted]
    return fastest(formats, hf_model, described(hf_model), (1, 6), (1, 2)).name


def test_the_fastest_is_taken_and_kept_for_the_next_start(timed):
    seconds, trials = timed
    hf_model = random_model(CONFIGS["llama"])
    assert choose(hf_model, "bfloat16", "float16", "float32") == "bfloat16"  # none is faster
    seconds["float16"] = 0.5
    assert choose(hf_model, "bfloat16", "float16", "float32") == "bfloat16" and len(trials) == 1
    assert choose(hf_model, "float16", "float32") == "float16" and len(trials) == 2
    assert choose(hf_model, "float32") == "float32" and len(trials) == 2  # nothing to choose


def test_the_reason_for_a_format_is_kept_and_said(timed):
    seconds, _ = timed
    seconds.update(float16=0.5, bfloat16=0.8)
    assert choose(random_model(CONFIGS["llama"]), "float16", "bfloat16", "float32") == "float16"
    target = {"fingerprint": "none", "dtype": "float16"}
    assert format_here(target) == (
        "Number format float16, the fastest of 3 tried here: a pass over one token takes 1.6 times as long in bfloat16 "
        "and 2.0 times as long in float32."
    )
    assert "takes as long in float32 and 1.9 times" in tuning._why("int8", {"int8": 1, "float32": 1.04, "int4": 1.9}, 3)
    checked = "passes and checks together; a pass over one token alone takes 0.9 times as long in float16."
    assert checked in tuning._why("bfloat16", {"bfloat16": 1, "float16": 0.9}, 2)
    assert format_here(target | {"dtype": "float32"}) == ""  # asked for, not found by trying
    assert format_here(target | {"fingerprint": "other"}) == ""


class Sociable(DenseLinear):
    def __call__(self, x):
        return super().__call__(x) * (1 + 1e-3 * x.mean())  # of all rows, so that no number of them helps


def test_a_format_whose_rows_depend_on_their_company_is_left_out(timed, monkeypatch):
    seconds, trials = timed
    seconds["float16"] = 0.1
    monkeypatch.setattr(type(find_format("float16")), "linear", lambda self, weight, bias: Sociable(weight))
    assert choose(random_model(CONFIGS["llama"]), "float16", "float32") == "float32"
    assert trials == [["float32"]]


def best(**passes: tuple[float, ...]) -> str:
    """The format with these milliseconds for 1, 2, 4, 6 and 9 rows that a target would run in."""
    per_token = best_use({(name, 1): dict(zip(TARGET_ROWS, times)) for name, times in passes.items()})
    return min(per_token, key=per_token.get)[0]


def test_a_target_runs_in_what_writes_its_text_fastest():
    flat, steep = (20, 20, 20, 20, 20), (10, 22, 40, 60, 90)
    assert best(flat=flat, steep=steep) == "flat"  # four guesses in a pass of 20 are better than plain passes of 10
    assert best(flat=(30, 30, 30, 30, 30), steep=steep) == "steep"
    measured = {"float16": (17.8, 18.2, 22.8, 29.2, 38.9), "bfloat16": (27.4, 28.7, 25.1, 26.6, 34.9)}
    assert best(**measured) == "float16"  # a shared Zen 4 with slow memory
    assert best(float16=measured["float16"], bfloat16=(14.4, 14.6, 16.5, 18.3, 24.0)) == "bfloat16"  # a faster one
    steps = best_use({("a", 1): {1: 1.0, 2: 2.5}, ("b", 1): {1: 1.4, 2: 1.5}})
    assert steps[("a", 1)] == 3.5 and steps[("b", 1)] == 2.9  # a draft's steps add up


def test_a_format_that_cannot_hold_a_layer_is_left_out(timed, monkeypatch):
    monkeypatch.setattr(type(find_format("float16")), "refusal", lambda self, n_out, n_in: "no layer is good enough")
    hf_model = random_model(CONFIGS["llama"])
    with pytest.raises(UserError, match="test cannot run in float16: no layer is good enough. Leave the number format"):
        lean(hf_model, "float16")
    assert choose(hf_model, "float16", "float32") == "float32" and timed[1] == [["float32"]]


def test_an_imitated_cpu_is_another_machine(monkeypatch):
    describe = describe_machine.__wrapped__  # which describes it anew
    monkeypatch.delenv(cpu.IMITATED, raising=False)
    real = describe()
    monkeypatch.setenv(cpu.IMITATED, "avx2")
    assert describe() == replace(real, processor=real.processor + ", as avx2")
    monkeypatch.setenv(cpu.IMITATED, "vax")
    with pytest.raises(ValueError, match="must be one of avx2, avx512, plain, not vax"):
        cpu.imitated()
    ended = subprocess.run([sys.executable, "-c", "import decoding"], capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stderr.startswith("SPECULOSCOPE_CPU must be one of")


@pytest.mark.parametrize(
    "flags, classes",
    [("avx avx2 avx512f", cpu.CLASSES), ("avx avx2", ("avx2", "plain")), ("neon", ("plain",)), (None, ("plain",))],
)
def test_a_cpu_imitates_no_class_whose_instructions_it_lacks(monkeypatch, tmp_path, flags, classes):
    monkeypatch.setattr(cpu, "_CPUINFO", tmp_path / "cpuinfo")
    if flags:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags} sse2\n")
    assert cpu.possible() == classes
    with monkeypatch.context() as patch:
        patch.setattr(cpu.os, "environ", {cpu.IMITATED: "avx512"})
        if "avx512" in classes:
            cpu.imitate()
            assert cpu.os.environ["ATEN_CPU_CAPABILITY"] == "avx512"
        else:
            with pytest.raises(ValueError, match="This CPU lacks instructions of avx512: set SPECULOSCOPE_CPU to"):
                cpu.imitate()
