"""The GPU day: order, time, resuming and summary; its commands run on the stand-in."""

from __future__ import annotations

import json
from concurrent.futures import Future

import pytest

from decoding.bench import against, gpu_day, runs
from decoding.bench.gpu_day import plan, read_step, run_day, summary
from decoding.errors import UserError
from decoding.records.pairs import PairDescription
from tests import test_gpu
from tests.commands import command
from tests.fake_cuda import fake_gpu
from tests.test_bench import REPORT

COUNTS = {"equal": 3, "compared": 4, "near_ties": 1, "different": []}


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

    sentences = list(run_day(tmp_path, 10.0, run))
    assert asked == ["-q", "lossless", "lossless", "bench", "compare", "evaluate"] and len(sentences) == 6
    assert read_step(tmp_path, "bench")["data"] == [REPORT]
    asked.clear()
    again = list(run_day(tmp_path, 10.0, run))
    assert asked == ["evaluate"] and again[0] == "tests: done before."  # failed steps are tried again


def test_a_folder_of_another_pair_is_refused(tmp_path):
    list(run_day(tmp_path, 10.0, answer, "codepair-15M"))
    with pytest.raises(UserError, match="choose another folder"):
        list(run_day(tmp_path, 10.0, answer, "smollm2-135m"))
    assert "done before" in next(run_day(tmp_path, 25.0, answer, "codepair-15M"))  # with other time


def test_no_step_begins_without_time(tmp_path):
    clock = iter(range(0, 10_000, 240))  # every reading of the clock takes four minutes
    sentences = list(run_day(tmp_path, 10.0, answer, now=lambda: next(clock)))
    assert [sentence.split(",")[0].split(": ")[1] for sentence in sentences[:2]] == ["running", "running"]
    assert sentences[2] == "lossless-bfloat16: no time was left. Run the command again to continue."
    assert "not run" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize(
    "step, row",
    [
        ("lossless", {"data": COUNTS, "text": "", "status": 0}),
        ("lossless-bfloat16", {"data": COUNTS | {"equal": 2, "different": [1]}, "text": "", "status": 1}),
        ("tests", {"data": None, "text": "..\n== 9 passed in 3s ==\n", "status": 0}),
        ("bench", {"data": None, "text": "Error: out | of memory", "status": 1}),
    ],
)
def test_outcomes_in_words(tmp_path, step, row):
    (tmp_path / f"{step}.json").write_text(json.dumps(row))
    expected = {
        "lossless": "| lossless | 3 of 4 texts equal to generate's, 1 near ties, 0 differ |",
        "lossless-bfloat16": "| lossless-bfloat16 | 2 of 4 texts equal to plain decoding's, 1 near ties, 1 differ |",
        "tests": "| tests | 9 passed in 3s |",
        "bench": "| bench | failed with status 1: Error: out / of memory |",
    }
    assert expected[step] in summary(tmp_path)


def test_the_summary_holds_the_benchmarks_reports(tmp_path):
    (tmp_path / "bench.json").write_text(json.dumps({"status": 0, "data": [REPORT], "text": ""}))
    text = summary(tmp_path)
    assert (
        "## smollm2-135m, bfloat16, cpu" in text and "| autoregressive / hf generate | 2.60× (1.90 to 3.00) |" in text
    )
    assert "- One target pass takes 16.000 ms, 1.60 times its bytes' 10.000 ms." in text


def test_without_a_gpu_it_is_refused_in_a_sentence():
    for words in (["gpu-day"], ["bench", "--device", "cuda"]):
        status, _, err = command(*words)
        assert status == 2 and "There is no CUDA device here" in err


SMALL = {
    "lossless": ["--limit=1", "--longest=1", "--max-new-tokens=4"],
    "bench": ["--limit=1", "--repeats=1", "--max-new-tokens=8", "--dtype=float32"],
    "compare": ["--max-new-tokens=4", "--repeats=1"],
    "evaluate": ["--limit=1", "--validation-limit=1", "--clock-prompts=1", "--repeats=1", "--max-new-tokens=4"]
    + ["--lanes=static:3"],
}


@pytest.mark.timeout(600)
def test_every_step_runs_on_a_stand_in(tiny_pair, monkeypatch, tmp_path):
    """The commands as the day asks for them, on smaller work; the shaped pairs are in tests/test_bench_shapes.py."""
    target, draft = tiny_pair
    described = PairDescription("tiny", "Tiny", "embedded", target, {"draft": draft}, "draft")
    monkeypatch.setattr("decoding.engines.pair.find_pair", lambda name: described)
    monkeypatch.setattr(runs, "embedded_pairs", lambda: [described])
    monkeypatch.setattr(runs, "SHAPES", ())
    monkeypatch.setattr(against, "POLICIES", ())
    for name, value in (("GROWTH_SHORT", 30), ("GROWTH_LONG", 60), ("GROWTH_TOKENS", 4)):
        monkeypatch.setattr(against, name, value)
    monkeypatch.setitem(against._PROBE_BYTES, "cuda", 2**16)
    monkeypatch.setattr(against, "ROUNDS", 2)
    monkeypatch.setattr("decoding.backends.jobs.ThreadPoolExecutor", Inline)
    monkeypatch.setattr(gpu_day, "LANES", "autoregressive,static:3")
    asked = []

    def run(words, minutes):
        asked.append(words)
        if words[0] == "pytest":  # a day on a GPU starts it as a process of its own
            test_gpu.test_passes_are_recorded_as_graphs((target, draft))
            return 0, "1 passed"
        return command(*words[1:], *SMALL[words[1]])[:2]

    with fake_gpu(monkeypatch) as cuda:
        list(run_day(tmp_path / "day", 30.0, run))
    steps = ["tests", "lossless", "lossless-bfloat16", "bench", "recording", "evaluation"]
    assert [step.name for step in plan(tmp_path, 25.0)] == steps and len(asked) == len(steps)
    text = (tmp_path / "day" / "summary.md").read_text()
    assert cuda.graphs and "failed" not in text and "not run" not in text
    assert "texts equal to generate's" in text and "texts equal to plain decoding's" in text
    assert "2 of 2 lanes wrote the same text" in text and "| evaluation | done |" in text
    run_file, evaluation = (
        json.loads(path.read_text()) for path in (tmp_path / "day" / "run.json", tmp_path / "day" / "evaluation.json")
    )
    assert run_file["pair"]["target"]["engine"] == "cuda-graphs" and run_file["machine"]["gpu"]
    assert evaluation["data"]["setting"]["machine"]["gpu"], "compare and evaluate take the GPU by themselves"
    (report,) = read_step(tmp_path / "day", "bench")["data"]
    assert "hf generate static" in [figure["name"] for figure in report["figures"]]
    assert list(run_day(tmp_path / "day", 30.0, run)) == [f"{step}: done before." for step in steps]
