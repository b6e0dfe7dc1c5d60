"""The benchmark on pairs of a given shape; tests/test_gpu_day.py has its tables on a stand-in for a GPU."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch

from decoding.bench import runs
from decoding.bench.against import Work
from decoding.bench.markdown import as_markdown
from decoding.bench.shapes import SHAPES, Shape, make_models, make_pair, memory_of, random_prompts

ON_GPU = Work(limit=1, repeats=1, max_new_tokens=8, device="cuda", dtype="bfloat16")


TINY = Shape("tiny", 32, 48, heads=2, kv_heads=1, layers=4, draft_layers=1, vocab=100, context=400)


def test_shaped_pairs_agree_until_noise_parts_them(short_bench):
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
