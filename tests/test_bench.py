"""The benchmark: what it times, its settings, its conclusions; beside llama.cpp, a stand-in. No timing is asserted."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from dataclasses import asdict, replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import torch

from decoding.bench import against, contenders, runs
from decoding.bench.against import Report, Work, as_document, as_markdown
from decoding.bench.contenders import GenerateContender, LaneContender, LlamaCppContender, Reading
from decoding.bench.runs import SHAPES, Shape, make_models, make_pair, memory_of, random_prompts
from decoding.comparison.costs import measure_costs
from decoding.engines.loading import load_hf_model
from decoding.engines.pair import load_pair
from decoding.errors import UserError
from decoding.records.machine import describe_machine
from decoding.records.pairs import PairDescription
from tests.commands import Ended, command
from tests.tiny_gguf import write_gguf
from tests.tiny_models import make_model

pytestmark = pytest.mark.usefixtures("short_bench")
SMALL = ["--limit", "1", "--max-new-tokens", "8"]


@pytest.fixture(scope="module")
def models(folders):
    big, small = folders.values()
    pair = load_pair(target=str(big), draft=str(small), dtype="float32", device="cpu", threads=1)
    return pair, *(load_hf_model(folder, torch.float32) for folder in (big, small))


def test_all_contenders_write_the_same_text(models):
    pair, hf_target, hf_draft = models
    prompts = [pair.tokenizer.encode("def f(x):"), pair.tokenizer.encode("a b c")]
    report = against.bench_pair(pair, hf_target, hf_draft, prompts, Work(limit=2, repeats=1, max_new_tokens=8))
    assert report.same_text == report.n_prompts == 2
    ours, theirs = ["autoregressive", "static:5", "heuristic"], ["hf generate", "hf assisted 5", "hf assisted"]
    assert [figure.name for figure in report.figures] == [*ours, "confidence:0.4", *theirs]
    assert [(ratio.ours, ratio.theirs) for ratio in report.ratios][:2] == list(zip(ours, theirs))[:2]
    for figure in report.figures:
        speed = figure.tokens_per_s
        assert 0 < speed.low <= speed.median <= speed.high
        assert (figure.shares is None) == figure.name.startswith("hf ")
        assert figure.shares is None or sum(figure.shares) == pytest.approx(1.0)


def test_the_cost_of_recording_is_that_of_the_same_calls(models):
    pair, hf_target, hf_draft = models
    report = against.bench_recorder(pair, hf_target, hf_draft, [pair.tokenizer.encode("a b c")], Work(1, 1, 12))
    assert report.same_text == 1
    calls = ("hf generate", "hf assisted 5")
    assert [(one.ours, one.theirs) for one in report.ratios] == [(f"{call}, recorded", call) for call in calls]


def test_assisted_settings_reach_the_draft(models):
    _, hf_target, hf_draft = models
    defaults = contenders.assisted_settings(hf_draft)
    five = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
    five["num_assistant_tokens"] = 5
    contenders.never_ending(hf_target)
    steps = []
    handle = hf_target.register_forward_pre_hook(
        lambda module, args, kwargs: steps.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        GenerateContender("five", hf_target, hf_draft, five)._time([1, 2, 3], 30)
    finally:
        handle.remove()
    assert hf_draft.generation_config.num_assistant_tokens == 5
    assert max(steps[1:]) == 6  # five proposals and the token before them
    GenerateContender("defaults", hf_target, hf_draft, defaults)._time([1, 2, 3], 2)
    assert contenders.assisted_settings(hf_draft) == defaults


def test_decode_time_leaves_out_the_prompt(models):
    pair, hf_target, _ = models
    prompt = pair.tokenizer.encode("x" * 100)
    hf_target.generation_config.suppress_tokens = list(range(1, pair.target.vocab_size))
    reading = GenerateContender("plain", contenders.never_ending(hf_target)).run(prompt, 10)
    assert len(reading.output) == 10 and reading.n_timed == 9 and reading.decode_s < reading.total_s
    costs = measure_costs(pair, ["small"], prompt)
    ours = LaneContender("ours", "static:5", pair, costs, 1).run(prompt, 10)
    assert ours.output == reading.output and ours.n_timed == 10
    assert ours.decode_s == pytest.approx(sum(ours.shares))


class Scripted:
    """A contender with given speeds."""

    threads = 1

    def __init__(self, name: str, *speeds: float) -> None:
        self.name, self.speeds, self.calls = name, list(speeds), 0

    def run(self, prompt: list[int], n: int) -> Reading:
        self.calls += 1
        speed = self.speeds[(self.calls - 2) % len(self.speeds)]  # the first call warms up
        return Reading([1] * 10, 10 / speed, 10, 20 / speed, (0.1, 0.2, 0.0, 0.1))


def test_ratios_pair_the_same_prompt_and_repeat():
    contenders = [
        Scripted("autoregressive", 20, 30, 60),
        Scripted("hf generate", 10, 10, 20),
        Scripted("static:5", 1),
        Scripted("heuristic", 5),
        Scripted("disco", 9),
        Scripted("hf assisted", 3),
    ]
    readings = against.interleave(contenders, [[1]], Work(limit=1, repeats=3, max_new_tokens=10))
    ratio = against.ratio_of("autoregressive", "hf generate", readings).ratio
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((2.0, 3.0, 3.0))
    figures = against.figures_of(contenders, readings)
    found = [(one.ours, one.theirs) for one in against.ratios_of(figures, readings)]
    assert found == [("autoregressive", "hf generate"), ("disco", "hf assisted")]
    assert figures[0].tokens_per_s.median == pytest.approx(30) and figures[0].end_to_end == pytest.approx(15)
    assert figures[0].shares == pytest.approx([0.25, 0.5, 0.0, 0.25])


def test_the_command_prints_and_writes_its_reports(models, monkeypatch, tmp_path):
    pair, hf_target, hf_draft = models
    monkeypatch.setattr(runs, "load_pair", lambda *args, **kwargs: pair)
    monkeypatch.setattr(runs, "_transformers_models", lambda *args: (hf_target, hf_draft))
    described = [
        PairDescription(name, name, "embedded", "t", {"small": "d"}, "small") for name in ("codepair-1", "smollm2-135m")
    ]
    monkeypatch.setattr(runs, "embedded_pairs", lambda: described)
    monkeypatch.setattr(pair, "name", "codepair-1")
    small, out_folder = [*SMALL, "--repeats", "1"], tmp_path / "bench"
    said = command("bench", *small, "--out", str(out_folder))
    assert said.out.count("same text from all on 1 of 1") == 2  # every embedded pair in one command
    text = (out_folder / "bench.md").read_text()
    assert "| static:5 / hf assisted 5 | " in text and "One target pass takes " in text
    reports = json.loads((out_folder / "bench.json").read_text())
    assert [(len(report["figures"]), report["same_text"]) for report in reports] == [(7, 1), (7, 1)]
    assert "Cannot write into" in command("bench", *small, "--out", str(out_folder / "bench.md" / "none")).err
    assert "128 new tokens leave no room for a prompt" in command("bench", "--max-new-tokens", "128").err
    monkeypatch.setattr(runs, "bench_all", lambda *asked: [Report("codepair-1", "float32", "cpu")])
    (report,) = json.loads(command("bench", *small, "--json").out)
    assert report["pair"] == "codepair-1"


def test_ctrl_c_keeps_the_reports_that_were_finished_and_says_so(monkeypatch, tmp_path):
    def measured(pair, target, draft, work, recorder):
        yield Report("codepair-1", "float32", "cpu")
        os.kill(os.getpid(), signal.SIGINT)
        work.progress("Prompt 1 of 4", 0.0)
        raise AssertionError("it went on")

    monkeypatch.setattr(runs, "bench_all", measured)
    status, out, err = command("bench", *SMALL, "--out", str(tmp_path))
    assert status == 130 and "codepair-1, float32, cpu" in out
    assert "Cancelled: the report that was being measured is left out." in err
    assert [report["pair"] for report in json.loads((tmp_path / "bench.json").read_text())] == ["codepair-1"]


REPORT = {
    "pair": "smollm2-135m",
    "dtype": "bfloat16",
    "device": "cpu",
    "figures": [
        {"name": "static:5", "tokens_per_s": {"median": 9.0, "low": 8.0, "high": 10.0}, "end_to_end": 5.0}
        | {"threads": 1, "shares": [0.3, 0.66, 0.01, 0.03]}
    ],
    "ratios": [{"ours": "autoregressive", "theirs": "hf generate", "ratio": {"median": 2.6, "low": 1.9, "high": 3.0}}],
    "passes": [{"name": "target", "ms": 16.0, "floor_ms": 10.0}],
    "n_prompts": 0,
    "notes": ["A note."],
}


def test_a_document_holds_the_command_and_every_figure():
    text = as_document([REPORT], "python -m decoding bench", describe_machine())
    assert "`python -m decoding bench` on " in text
    assert text.partition("## ")[2].splitlines()[2:] == [
        "| | tokens/s | range | with prompt | threads | draft | check | policy | rest |".replace("| |", "|  |"),
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| static:5 | 9.0 | 8.0 to 10.0 | 5.0 | 1 | 30.0% | 66.0% | 1.0% | 3.0% |",
        "",
        "| ours / theirs | ratio |",
        "| --- | --- |",
        "| autoregressive / hf generate | 2.60× (1.90 to 3.00) |",
        "",
        "- One target pass takes 16.000 ms, 1.60 times its bytes' 10.000 ms.",
        "- A note.",
    ]


def test_a_contender_that_cannot_run_here_costs_no_other_figure():
    class Uncompiled(Scripted):
        def choose_threads(self, prompt, n, choices):
            if self.name == "hf generate static":
                raise RuntimeError("Failed to find C compiler.\nTraceback")

    contenders = [Uncompiled("hf generate", 10), Uncompiled("hf generate static", 20)]
    able, sentences = against.choose_able(contenders, [1], 8, (1,), lambda message, fraction: None)
    assert able == contenders[:1]
    assert sentences == ["Left out: hf generate static does not run here (Failed to find C compiler.)."]


def test_the_floor_counts_what_a_pass_reads(models):
    pair = models[0]
    info, context = pair.target.info, 50
    cache = 2 * info.layers * 2 * 32 * 4 * context
    assert against.floor_bytes(pair.target, context) == (info.parameters - info.vocab_size * 64) * 4 + cache


# -- pairs of a given shape; tests/test_gpu_day.py has the tables on a stand-in for a GPU

ON_GPU = Work(limit=1, repeats=1, max_new_tokens=8, device="cuda", dtype="bfloat16")


TINY = Shape("tiny", 32, 48, heads=2, kv_heads=1, layers=4, draft_layers=1, vocab=100, context=400)


def test_shaped_pairs_agree_until_noise_parts_them():
    rates = []
    for noise in (0.0, 0.3, 3.0):
        hf_models = make_models(TINY, "cpu", torch.float32, noise)
        pair = make_pair(TINY, *hf_models, "cpu", "float32")
        text = random_prompts(100, 1, 200)[0]
        with torch.no_grad():
            choices = [model(torch.tensor([text])).logits[0].argmax(-1) for model in hf_models]
        rates.append(float((choices[0] == choices[1]).float().mean()))
        assert pair.target.info.layers == 4 and pair.draft().info.layers == 1
    assert rates[0] == 1.0 > rates[1] > rates[2]
    report = runs.bench_shape(TINY, Work(1, 1, 8, "cpu", "float32"))
    assert report.same_text == 1 and report.pair == "tiny"
    assert [one.name for one in report.passes] == ["target", "draft"]


@pytest.mark.parametrize(("named", "shapes"), [("", len(SHAPES)), ("small", 0)])
def test_shapes_are_measured_where_no_pair_is_named(monkeypatch, named, shapes):
    monkeypatch.setattr(runs, "choose_device", lambda device: device)
    monkeypatch.setattr(runs, "_described", lambda pair, target, draft: [])
    monkeypatch.setattr(runs, "bench_shape", lambda shape, work: shape.name)
    assert list(runs.bench_all(named, "", "", ON_GPU)) == [one.name for one in SHAPES[:shapes]]
    assert list(runs.bench_all(named, "", "", ON_GPU, recorder=True)) == []


def test_a_shape_that_does_not_fit_is_left_out_with_a_sentence(monkeypatch):
    shape = SHAPES[1]
    assert memory_of(shape, "bfloat16") == pytest.approx(2 * 2 * 1.1 * 10.2e9, rel=0.02)  # 8.0e9 and 1.9e9, caches
    monkeypatch.setattr(runs, "free_memory", lambda device: 24 * 10**9)
    report = runs.bench_shape(shape, ON_GPU)
    assert report.figures == [] and "needs about" in report.notes[0] and "24.0 GB are free" in report.notes[0]
    assert "- Left out: The 8B/1B-shaped pair" in as_markdown(asdict(report))


def test_a_shape_for_which_memory_ends_after_all_is_left_out(monkeypatch):
    def full(*args, **kwargs):
        raise error

    monkeypatch.setattr(runs, "free_memory", lambda device: None)
    monkeypatch.setattr(runs, "make_models", full)
    error = torch.OutOfMemoryError("CUDA out of memory")
    report = runs.bench_shape(SHAPES[0], ON_GPU)
    assert report.figures == [] and report.notes[0].startswith("Left out: The GPU ran out of memory")
    error = RuntimeError("a fault of the program")
    with pytest.raises(RuntimeError, match="a fault"):
        runs.bench_shape(SHAPES[0], ON_GPU)


def test_the_memory_of_a_shape_is_that_of_its_models():
    shape = replace(TINY, context=1)
    models = make_models(shape, "cpu", torch.float32)
    weights = sum(one.numel() * 4 for model in models for one in model.parameters() if one.dim() > 1)
    assert memory_of(shape, "float32") == pytest.approx(1.1 * 2 * (weights + 2 * 5 * 16 * 4), rel=0.01)


# -- llama.cpp


class FakeLlama:
    """llama-cpp-python's model, as far as it is used: it counts upwards."""

    made: list[FakeLlama] = []

    def __init__(self, path: str, **options) -> None:
        if not path.endswith(".gguf"):
            raise ValueError("Failed to load model from file")
        self.path, self.options, self.resets = path, options, 0
        self.made.append(self)

    def reset(self) -> None:
        self.resets += 1

    def generate(self, tokens: list[int], **options):
        assert options == {"temp": 0.0, "repeat_penalty": 1.0} and tokens
        for token in itertools.count():
            yield token % 7


@pytest.fixture
def llama_cpp(monkeypatch):
    """llama-cpp-python's stand-in."""
    module = ModuleType("llama_cpp")
    module.Llama = FakeLlama
    module.__spec__ = ModuleSpec("llama_cpp", None)
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    monkeypatch.setattr(FakeLlama, "made", [])
    return module


def llamacpp_command(*words: str) -> Ended:
    return command("bench", "--against", "llamacpp", "--repeats", "2", *SMALL, *words)


def test_llama_cpp_takes_turns_with_our_lanes_on_the_same_file(llama_cpp, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECULOSCOPE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "tiny.Q4_1.gguf"
    write_gguf(file, "Q4_1")
    result = llamacpp_command("--target", str(file), "--draft", str(file), "--json")
    assert result.status == 0, result.err
    (report,) = json.loads(result.out)
    names = ["autoregressive", "static:5", "autoregressive int4", "static:5 int4", "llama.cpp"]
    assert [figure["name"] for figure in report["figures"]] == names
    assert {figure["threads"] for figure in report["figures"]} == {1}
    ratios = [(one["ours"], one["theirs"]) for one in report["ratios"]]
    assert ("autoregressive", "llama.cpp") in ratios and ("autoregressive int4", "autoregressive") in ratios
    (model,) = FakeLlama.made
    assert model.path == str(file) and model.resets == 3  # one to warm up, then one a repeat
    assert model.options["n_threads"] == model.options["n_threads_batch"] == 1
    assert "eight bits" in report["notes"][-1]


def test_llama_cpp_is_refused_in_a_sentence_where_it_cannot_run(llama_cpp, monkeypatch, tmp_path):
    words = ["--target", str(tmp_path), "--draft", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(runs, "choose_device", lambda device: "cuda")
        assert "one thread each: use --device cpu" in llamacpp_command(*words).err
    folder = str(make_model(tmp_path / "plain"))
    assert "is not from a GGUF file" in llamacpp_command("--target", folder, "--draft", folder).err
    with pytest.raises(UserError, match="llama.cpp cannot load model.bin"):
        LlamaCppContender(tmp_path / "model.bin", 8)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install -r requirements-llamacpp.txt" in llamacpp_command(*words).err


def test_llama_cpp_is_imported_by_its_contender_only():
    root = Path(__file__).resolve().parents[1]
    sources = [path for top in ("decoding", "viz", "training") for path in (root / top).rglob("*.py")]
    naming = [path.name for path in sources if "llama_cpp" in path.read_text(encoding="utf-8")]
    assert naming == ["contenders.py"]
    for name in ("requirements.txt", "requirements-dev.txt"):
        assert "llama-cpp" not in (root / name).read_text()
