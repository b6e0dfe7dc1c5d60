"""The GPU day: order, time, resuming, and figures compared with goals; its commands run on the stand-in."""

from __future__ import annotations

import json
from concurrent.futures import Future

import pytest

from decoding.bench import gpu_day
from decoding.bench.gpu_day import GOALS, plan, read_step, run_day, summary
from decoding.cli import main
from decoding.records.pairs import PairDescription
from tests.fake_cuda import fake_gpu
from tests.test_bench import make_tiny_pair

COUNTS = {"equal": 3, "compared": 4, "near_ties": 1}
REPORT = {
    "pair": "8B/1B-shaped",
    "ratios": [{"ours": "static:5", "theirs": "hf assisted 5", "median": 2.5}],
    "passes": [{"name": "target", "ms": 5.0, "floor_ms": 3.0}, {"name": "chained draft", "ms": 0.05, "floor_ms": 0.1}],
}


def answer(words, minutes):
    return 0, {"bench": json.dumps([REPORT]), "-q": "9 passed", "compare": "{}"}.get(words[1], json.dumps(COUNTS))


class Inline:
    """A pool that does its work immediately: the stand-in for CUDA works in one thread only."""

    def __init__(self, workers, **options):
        pass

    def shutdown(self, wait=True):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, function, *args, **options):
        done = Future()
        done.set_result(function(*args, **options))
        return done


def test_steps_are_written_as_they_end_and_not_run_again(tmp_path):
    asked = []

    def run(words, minutes):
        asked.append(words[1])
        if words[1] == "evaluate":
            return 1, "the GPU has faulted"
        return answer(words, minutes)

    told = list(run_day(tmp_path, 10.0, run))
    assert asked == ["-q", "lossless", "bench", "compare", "evaluate"] and len(told) == 5
    assert read_step(tmp_path, "bench")["data"] == [REPORT]
    asked.clear()
    again = list(run_day(tmp_path, 10.0, run))
    assert asked == ["evaluate"] and again[0] == "tests: done before."  # failed steps are tried again


def test_no_step_begins_without_time(tmp_path):
    clock = iter(range(0, 10_000, 240))  # every reading of the clock takes four minutes
    told = list(run_day(tmp_path, 10.0, answer, now=lambda: next(clock)))
    assert [sentence.split(",")[0].split(": ")[1] for sentence in told[:2]] == ["running", "running"]
    assert told[2] == "bench: no time was left. Run the command again to go on."
    assert "not run" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize(
    "step, row",
    [
        ("lossless", {"data": {"equal": 3, "compared": 4, "near_ties": 1}, "text": "", "status": 0}),
        ("tests", {"data": None, "text": "..\n== 9 passed in 3s ==\n", "status": 0}),
        ("bench", {"data": None, "text": "Error: out | of memory", "status": 1}),
    ],
)
def test_outcomes_in_words(tmp_path, step, row):
    (tmp_path / f"{step}.json").write_text(json.dumps(row))
    expected = {
        "lossless": "| lossless | 3 of 4 texts equal to generate's, 1 near ties |",
        "tests": "| tests | 9 passed in 3s |",
        "bench": "| bench | failed with status 1: Error: out / of memory |",
    }
    assert expected[step] in summary(tmp_path)


def test_goals_stand_beside_their_figures(tmp_path):
    small = {"pair": "codepair-15M", "ratios": [], "passes": []}
    (tmp_path / "bench.json").write_text(json.dumps({"status": 0, "data": [REPORT, small], "text": ""}))
    text = summary(tmp_path)
    for row in (
        "| 8B/1B-shaped | static:5 at least 2x assisted generation | 2.50 | reached |",
        "| 8B/1B-shaped | a target pass at most 1.4x the time of its bytes | 1.67 | missed |",
        "| 8B/1B-shaped | a chained draft step under 60 microseconds | 50.00 | reached |",
        "| codepair-15M | static:5 at least 8x assisted generation | not measured |  |",
    ):
        assert row in text
    assert len(GOALS) == 4


def test_without_a_gpu_it_is_refused_in_a_sentence(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["gpu-day"])
    assert ended.value.code == 2 and "There is no CUDA device here" in capsys.readouterr().err


@pytest.mark.timeout(600)
def test_its_commands_run_on_a_stand_in(monkeypatch, capfd, tmp_path):
    """Smaller versions of the day's lossless check and recording; tests/test_bench.py runs bench on the stand-in."""
    target, draft = make_tiny_pair(tmp_path)
    described = PairDescription("tiny", "Tiny", "embedded", target, {"draft": draft}, "draft")
    monkeypatch.setattr("decoding.engines.pair.find_pair", lambda name: described)
    monkeypatch.setattr("decoding.comparison.costs.BUDGET_S", 0.02)
    monkeypatch.setattr("decoding.backends.loading.ThreadPoolExecutor", Inline)
    monkeypatch.setattr(gpu_day, "LANES", "autoregressive,static:3")
    small = {
        "lossless": ["--limit=1", "--longest=1", "--max-new-tokens=4"],
        "compare": ["--max-new-tokens=8", "--repeats=1"],
    }

    def run(words, minutes):
        if words[1] not in small:
            return 1, "not run here"
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*words[1:], *small[words[1]]])
        return int(ended.value.code or 0), capfd.readouterr().out

    with fake_gpu(monkeypatch) as cuda:
        list(run_day(tmp_path / "day", 30.0, run))
    text = (tmp_path / "day" / "summary.md").read_text()
    assert cuda.graphs and "texts equal to generate's" in text and "2 of 2 lanes wrote the same text" in text
    assert [step.name for step in plan(tmp_path, 25.0)] == ["tests", "lossless", "bench", "recording", "evaluation"]
