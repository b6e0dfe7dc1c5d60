"""The benchmark on pairs of a given shape and on a stand-in for a GPU."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch

from decoding.bench import against, runs
from decoding.bench.against import Work
from decoding.bench.markdown import as_markdown
from decoding.bench.shapes import SHAPES, Shape, make_models, make_pair, memory_of, random_prompts
from decoding.records.pairs import PairDescription
from tests.commands import command
from tests.fake_cuda import fake_gpu

ON_GPU = Work(limit=1, repeats=1, max_new_tokens=8, device="cuda", dtype="bfloat16")


@pytest.fixture(autouse=True)
def short_probe(monkeypatch):
    monkeypatch.setattr(against, "_PROBE_BYTES", dict.fromkeys(against._PROBE_BYTES, 2**16))
    monkeypatch.setattr(against, "ROUNDS", 2)


def test_shaped_pairs_agree_until_noise_parts_them():
    shape = Shape(
        "tiny",
        hidden=32,
        intermediate=48,
        heads=2,
        kv_heads=1,
        layers=4,
        draft_layers=1,
        vocab=100,
        context=400,
    )
    rates = []
    for noise in (0.0, 0.3, 3.0):
        hf_models = make_models(shape, "cpu", torch.float32, noise)
        pair = make_pair(shape, *hf_models, "cpu", "float32")
        text = random_prompts(100, 1, 200)[0]
        with torch.no_grad():
            choices = [model(torch.tensor([text])).logits[0].argmax(-1) for model in hf_models]
        rates.append(float((choices[0] == choices[1]).float().mean()))
        assert pair.target.info.layers == 4 and pair.draft().info.layers == 1
    assert rates[0] == 1.0 > rates[1] > rates[2]
    report = runs.bench_shape(shape, Work(1, 1, 8, "cpu", "float32"))
    assert report.same_text == 1 and report.pair == "tiny"
    assert [one.name for one in report.passes] == ["target", "draft"]


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


@pytest.mark.timeout(600)
def test_all_tables_of_a_gpu_on_a_stand_in(tiny_pair, monkeypatch, tmp_path):
    """The command as on a GPU: the named pair and a shape at reduced sizes, all contenders, the floor, growth."""
    target, draft = tiny_pair
    described = PairDescription("tiny", "Tiny", "embedded", target, {"draft": draft}, "draft")
    reduced = dict(hidden=64, intermediate=96, heads=4, kv_heads=1, layers=2, vocab=300, context=256)
    monkeypatch.setattr(runs, "embedded_pairs", lambda: [described])
    monkeypatch.setattr("decoding.engines.pair.find_pair", lambda name: described)
    monkeypatch.setattr(runs, "SHAPES", [replace(SHAPES[1], draft_layers=1, **reduced)])
    monkeypatch.setattr(against, "POLICIES", ("heuristic",))
    for name, value in (("GROWTH_SHORT", 30), ("GROWTH_LONG", 60), ("GROWTH_TOKENS", 4)):
        monkeypatch.setattr(against, name, value)
    with fake_gpu(monkeypatch) as cuda:
        small = ["--limit", "1", "--repeats", "1", "--max-new-tokens", "8"]
        words = ["bench", "--device", "cuda", "--dtype", "float32", *small, "--out", str(tmp_path / "bench")]
        assert command(*words).status == 0
    printed = (tmp_path / "bench" / "bench.md").read_text()
    assert "tiny, float32, cuda" in printed and "8B/1B-shaped, float32, cuda" in printed
    for row in (
        "| autoregressive |",
        "| static:5 |",
        "| heuristic |",
        "| hf generate |",
        "| hf generate static |",
        "| hf assisted 5 |",
        "- One target pass takes ",
        "- One draft pass takes ",
        "- One planned draft pass takes ",
        "same text from all on 1 of 1 prompts",
    ):
        assert printed.count(row) >= 2, row
    assert printed.count("per iteration at context") == 2 and printed.count("| static:5 / hf assisted 5 |") == 2
    assert "Left out" not in printed and "eagerly" not in printed
    assert len(cuda.graphs) > 20 and cuda.events and cuda.memory.fills and all(cuda.memory.fills)


def test_the_memory_of_a_shape_is_that_of_its_models():
    shape = Shape("tiny", 32, 48, heads=2, kv_heads=1, layers=4, draft_layers=1, vocab=100, context=1)
    models = make_models(shape, "cpu", torch.float32)
    weights = sum(one.numel() * 4 for model in models for one in model.parameters() if one.dim() > 1)
    assert memory_of(shape, "float32") == pytest.approx(1.1 * 2 * (weights + 2 * 5 * 16 * 4), rel=0.01)
