"""The benchmark: what it times, its settings and its conclusions. No timing is asserted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from decoding.bench import against, floor, runs
from decoding.bench.against import bench_pair, figures_of, interleave, ratio_of, ratios_of
from decoding.bench.contenders import GenerateContender, LaneContender, Reading, assisted_settings, never_ending
from decoding.bench.floor import floor_bytes
from decoding.bench.shapes import SHAPES, Shape, make_models, make_pair, memory_of, random_prompts
from decoding.cli import main
from decoding.comparison.costs import measure_costs
from decoding.engines.loading import load_hf_model
from decoding.engines.pair import load_pair
from decoding.errors import UserError
from decoding.records.pairs import PairDescription
from tests.fake_cuda import fake_gpu
from tests.tiny_models import make_model
from tests.tiny_pair import make_tiny_pair


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    folders = make_model(base / "big", hidden=64), make_model(base / "small")
    pair = load_pair(target=str(folders[0]), draft=str(folders[1]), dtype="float32", device="cpu", threads=1)
    return pair, *(load_hf_model(folder, torch.float32) for folder in folders)


def test_all_contenders_write_the_same_text(models):
    pair, hf_target, hf_draft = models
    prompts = [pair.tokenizer.encode("def f(x):"), pair.tokenizer.encode("a b c")]
    report = bench_pair(pair, hf_target, hf_draft, prompts, max_new_tokens=12, repeats=2, cores=1)
    assert report.same_text == report.n_prompts == 2
    names = [figure.name for figure in report.figures]
    assert names == [
        "autoregressive",
        "static:5",
        "heuristic",
        "confidence:0.4",
        "hf generate",
        "hf assisted 5",
        "hf assisted",
    ]
    assert [(ratio.ours, ratio.theirs) for ratio in report.ratios][:2] == [
        ("autoregressive", "hf generate"),
        ("static:5", "hf assisted 5"),
    ]
    for figure in report.figures:
        assert 0 < figure.low <= figure.tokens_per_s <= figure.high
        assert (figure.shares is None) == figure.name.startswith("hf ")
        assert figure.shares is None or sum(figure.shares) == pytest.approx(1.0)


def test_assisted_settings_reach_the_draft(models):
    _, hf_target, hf_draft = models
    defaults = assisted_settings(hf_draft)
    five = {
        "num_assistant_tokens": 5,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    never_ending(hf_target)
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
    assert assisted_settings(hf_draft) == defaults


def test_decode_time_leaves_out_the_prompt(models):
    pair, hf_target, _ = models
    prompt = pair.tokenizer.encode("x" * 100)
    reading = GenerateContender("plain", never_ending(hf_target)).run(prompt, 10)
    assert len(reading.output) == 10 and reading.n_timed == 9 and reading.decode_s < reading.total_s
    costs = measure_costs(pair, ["small"], prompt)
    ours = LaneContender("static:5", pair, costs, 1).run(prompt, 10)
    assert ours.output == reading.output and ours.n_timed == 10
    assert ours.decode_s == pytest.approx(sum(ours.shares)) and 2 <= ours.n_iterations <= 10


def reading(speed: float) -> Reading:
    return Reading([1] * 10, 10 / speed, 10, 20 / speed, (0.1, 0.2, 0.0, 0.1))


class Scripted:
    """A contender with given speeds."""

    threads = 1

    def __init__(self, name: str, *speeds: float) -> None:
        self.name, self.speeds, self.calls = name, list(speeds), 0

    def run(self, prompt: list[int], n: int) -> Reading:
        self.calls += 1
        return reading(self.speeds[(self.calls - 2) % len(self.speeds)])  # the first call warms up


def test_ratios_pair_the_same_prompt_and_repeat():
    contenders = [
        Scripted("autoregressive", 20, 30, 60),
        Scripted("hf generate", 10, 10, 20),
        Scripted("static:5", 1),
        Scripted("heuristic", 5),
        Scripted("disco", 9),
        Scripted("hf assisted", 3),
    ]
    readings = interleave(contenders, [[1]], 10, 3, lambda message, fraction: None)
    ratio = ratio_of("autoregressive", "hf generate", readings)
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((2.0, 3.0, 3.0))
    figures = figures_of(contenders, readings)
    assert [(one.ours, one.theirs) for one in ratios_of(figures, readings)] == [
        ("autoregressive", "hf generate"),
        ("disco", "hf assisted"),
    ]
    assert figures[0].tokens_per_s == pytest.approx(30) and figures[0].end_to_end == pytest.approx(15)
    assert figures[0].shares == pytest.approx([0.25, 0.5, 0.0, 0.25])


def test_growth_is_left_out_where_the_context_is_short(models):
    assert against.measure_growth(models[0], [1, 2, 3], 1) == []


def test_the_command_prints_json(models, monkeypatch, tmp_path):
    import typer

    from decoding.cli import bench as command

    pair, hf_target, hf_draft = models
    monkeypatch.setattr(runs, "load_pair", lambda *args, **kwargs: pair)
    monkeypatch.setattr(runs, "_transformers_models", lambda *args: (hf_target, hf_draft))
    monkeypatch.setattr(runs, "find_pair", lambda name: None)
    application = typer.Typer()
    application.command()(command.bench)
    result = CliRunner().invoke(application, ["--limit", "1", "--repeats", "1", "--max-new-tokens", "8", "--json"])
    assert result.exit_code == 0, result.output
    (report,) = json.loads(result.stdout)
    assert len(report["figures"]) == 7 and report["same_text"] == 1
    result = CliRunner().invoke(application, ["--limit", "1", "--repeats", "1", "--max-new-tokens", "8"])
    assert "same text on 1 of 1" in result.output


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
    report = runs.bench_shape(shape, "cpu", "float32", 1, 1, 8, lambda message, fraction: None)
    assert (
        report.same_text == 1 and report.pair == "tiny" and [one.name for one in report.passes] == ["target", "draft"]
    )


def test_a_shape_that_does_not_fit_is_left_out_with_a_sentence(monkeypatch, capsys):
    from decoding.cli.bench import _show

    shape = SHAPES[1]
    assert memory_of(shape, "bfloat16") == pytest.approx(2 * 2 * 1.1 * 10.2e9, rel=0.02)  # 8.0e9 and 1.9e9, caches
    monkeypatch.setattr(runs, "free_memory", lambda device: 24 * 10**9)
    report = runs.bench_shape(shape, "cuda", "bfloat16", 1, 1, 8, lambda message, fraction: None)
    assert report.figures == [] and "needs about" in report.notes[0] and "24.0 GB are free" in report.notes[0]
    _show(report)
    assert "Left out: The 8B/1B-shaped pair" in capsys.readouterr().out


def test_a_shape_for_which_memory_ends_after_all_is_left_out(monkeypatch):
    def full(*args, **kwargs):
        raise error

    monkeypatch.setattr(runs, "free_memory", lambda device: None)
    monkeypatch.setattr(runs, "make_models", full)
    error = torch.OutOfMemoryError("CUDA out of memory")
    report = runs.bench_shape(SHAPES[0], "cuda", "bfloat16", 1, 1, 8, lambda message, fraction: None)
    assert report.figures == [] and report.notes[0].startswith("Left out: The GPU ran out of memory")
    error = RuntimeError("a fault of the program")
    with pytest.raises(RuntimeError, match="a fault"):
        runs.bench_shape(SHAPES[0], "cuda", "bfloat16", 1, 1, 8, lambda message, fraction: None)


def test_a_contender_that_cannot_run_here_costs_no_other_figure():
    class Uncompiled(Scripted):
        def choose_threads(self, prompt, n, choices):
            if self.name == "hf generate static":
                raise RuntimeError("Failed to find C compiler.\nTraceback")

    contenders = [Uncompiled("hf generate", 10), Uncompiled("hf generate static", 20)]
    able, sentences = against.choose_able(contenders, [1], 8, (1,), lambda message, fraction: None)
    assert able == contenders[:1]
    assert sentences == ["Left out: hf generate static does not run here (Failed to find C compiler.)."]


def test_without_a_gpu_the_benchmark_on_one_is_refused_in_a_sentence(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--device", "cuda"])
    assert ended.value.code == 2 and "There is no CUDA device here: run on the CPU" in capsys.readouterr().err


@pytest.mark.timeout(600)
def test_all_tables_of_a_gpu_on_a_stand_in(monkeypatch, capsys, tmp_path):
    """The command as on a GPU: the named pair and both shapes at reduced sizes, all contenders, the floor, growth."""
    target, draft = make_tiny_pair(tmp_path)
    described = PairDescription("tiny", "Tiny", "embedded", target, {"draft": draft}, "draft")
    reduced = dict(hidden=64, intermediate=96, heads=4, kv_heads=1, layers=2, vocab=300, context=256)
    for module in ("decoding.bench.runs", "decoding.engines.pair"):
        monkeypatch.setattr(f"{module}.find_pair", lambda name: described)
    monkeypatch.setattr(runs, "SHAPES", [replace(shape, draft_layers=1, **reduced) for shape in SHAPES])
    monkeypatch.setattr("decoding.comparison.costs.BUDGET_S", 0.02)
    monkeypatch.setitem(floor._PROBE_BYTES, "cuda", 2**16)
    monkeypatch.setattr(floor, "ROUNDS", 2)
    monkeypatch.setattr(against, "POLICIES", ("heuristic",))
    for name, value in (("GROWTH_SHORT", 30), ("GROWTH_LONG", 60), ("GROWTH_TOKENS", 8)):
        monkeypatch.setattr(against, name, value)
    with fake_gpu(monkeypatch) as cuda:
        main_ends(
            [
                "bench",
                "--device",
                "cuda",
                "--dtype",
                "float32",
                "--limit",
                "1",
                "--repeats",
                "1",
                "--max-new-tokens",
                "8",
            ]
        )
    told = capsys.readouterr().out
    for pair in ("tiny, float32, cuda", "1B/0.15B-shaped, float32, cuda", "8B/1B-shaped, float32, cuda"):
        assert pair in told
    for row in (
        "autoregressive ",
        "static:5 ",
        "heuristic ",
        "hf generate ",
        "hf generate static ",
        "hf assisted 5 ",
        "one target pass: ",
        "one draft pass: ",
        "one chained draft pass: ",
        "same text on 1 of 1 prompts",
    ):
        assert told.count(row) >= 3, row
    assert told.count("per iteration at context") == 2 and told.count("static:5 / hf assisted 5: ") == 3
    assert "Left out" not in told and "eagerly" not in told
    assert len(cuda.graphs) > 30 and cuda.events and cuda.memory.fills and all(cuda.memory.fills)


def main_ends(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0


def test_the_memory_of_a_shape_is_that_of_its_models():
    shape = Shape("tiny", 32, 48, heads=2, kv_heads=1, layers=4, draft_layers=1, vocab=100, context=1)
    models = make_models(shape, "cpu", torch.float32)
    weights = sum(one.numel() * 4 for model in models for one in model.parameters() if one.dim() > 1)
    assert memory_of(shape, "float32") == pytest.approx(1.1 * 2 * (weights + 2 * 5 * 16 * 4), rel=0.01)


def test_the_floor_counts_what_a_pass_reads(models):
    pair = models[0]
    info, context = pair.target.info, 50
    cache = 2 * info.layers * 2 * 32 * 4 * context
    assert floor_bytes(pair.target, context) == (info.parameters - info.vocab_size * 64) * 4 + cache


@pytest.mark.parametrize("options", [dict(against="vllm"), dict(limit=0), dict(max_new_tokens=1)])
def test_bad_settings_are_told_in_a_sentence(options):
    from decoding.cli.bench import bench

    given = dict(against="transformers", limit=1, repeats=1, max_new_tokens=8) | options
    with pytest.raises(UserError):
        bench(**given)
