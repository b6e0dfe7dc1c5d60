"""The GPU day: order, time, resuming and summary; its commands run on the stand-in."""

import json
import os
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from decoding.bench import against, gpu_day, runs
from decoding.bench.gpu_day import plan, read_step, run_day, summary
from decoding.bench.runs import SHAPES
from decoding.comparison import costs
from decoding.errors import UserError
from decoding.records.pairs import PairDescription
from tests import test_gpu
from tests.commands import command
from tests.fake_cuda import fake_gpu
from tests.test_bench import REPORT

COUNTS = {"equal": 3, "compared": 4, "near_ties": 1, "different": []}


def answer(words, minutes):
    return 0, {"bench": json.dumps([REPORT]), "-q": "9 passed", "compare": "{}"}.get(words[1], json.dumps(COUNTS))


class Inline(ThreadPoolExecutor):
    """Does its work immediately: the stand-in for CUDA works in one thread only."""

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


def test_ctrl_c_ends_the_day_after_its_step_and_says_how_to_go_on(tmp_path, monkeypatch):
    def interrupted(words, minutes):
        os.kill(os.getpid(), signal.SIGINT)
        return answer(words, minutes)

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("decoding.cli.bench.run_module", interrupted)
    status, out, err = command("gpu-day", "--out", str(tmp_path))
    assert (status, out) == (130, "") and "Stopped. The same command continues." in err
    assert read_step(tmp_path, "tests")["status"] == 0 and read_step(tmp_path, "lossless") is None


@pytest.mark.parametrize(
    "step, row, words",
    [
        ("lossless", {"data": COUNTS}, "3 of 4 texts equal to generate's, 1 near ties, 0 differ |"),
        (
            "lossless-bfloat16",
            {"data": COUNTS | {"equal": 2, "different": [1]}, "status": 1},
            "2 of 4 texts equal to plain decoding's, 1 near ties, 1 differ |",
        ),
        ("tests", {"text": "..\n== 9 passed in 3s ==\n"}, "9 passed in 3s |"),
        ("bench", {"text": "Error: out | of memory", "status": 1}, "failed with status 1: Error: out \\| of memory |"),
    ],
)
def test_outcomes_in_words(tmp_path, step, row, words):
    (tmp_path / f"{step}.json").write_text(json.dumps({"data": None, "text": "", "status": 0} | row))
    assert f"| {step} | {words}" in summary(tmp_path)


SMALL = {
    "lossless": ["--limit=1", "--longest=1", "--max-new-tokens=4"],
    "bench": ["--limit=1", "--repeats=1", "--max-new-tokens=8", "--dtype=float32"],
    "compare": ["--max-new-tokens=4", "--repeats=1"],
    "evaluate": ["--limit=1", "--validation-limit=1", "--clock-prompts=1", "--repeats=1", "--max-new-tokens=4"]
    + ["--lanes=static:3"],
}


REPORTED = (
    "| autoregressive |",
    "| static:5 |",
    "| heuristic |",
    "| hf generate |",
    "| hf generate static |",
    "| hf assisted 5 |",
    "| static:5 / hf assisted 5 |",
    "- One target pass takes ",
    "- One draft pass takes ",
    "- One planned draft pass takes ",
    "same text from all on 1 of 1 prompts",
)


@pytest.mark.timeout(600)
def test_every_step_runs_on_a_stand_in(tiny_pair, short_bench, monkeypatch, tmp_path):
    """The commands as the day asks for them, on smaller work; the benchmark also on a shaped pair of reduced sizes."""
    target, draft = tiny_pair
    described = PairDescription("tiny", "Tiny", "embedded", target, {"draft": draft}, "draft")
    reduced = dict(hidden=64, intermediate=96, heads=4, kv_heads=1, layers=2, draft_layers=1, vocab=300, context=256)
    monkeypatch.setattr("decoding.engines.pair.find_pair", lambda name: described)
    monkeypatch.setattr(runs, "embedded_pairs", lambda: [described])
    monkeypatch.setattr(runs, "SHAPES", [replace(SHAPES[1], **reduced)])
    monkeypatch.setattr(against, "POLICIES", ("heuristic",))
    monkeypatch.setattr("decoding.backends.jobs.ThreadPoolExecutor", Inline)
    monkeypatch.setattr(gpu_day, "LANES", "autoregressive,static:3")
    monkeypatch.setattr(costs, "ROUNDS", (1, 1))
    monkeypatch.setattr(costs, "SHORT", (1, 2, 4, 8))
    monkeypatch.setattr(costs, "LONG", (12,))
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
    assert "failed" not in text and "not run" not in text and "Left out" not in text and "eagerly" not in text
    assert len(cuda.graphs) > 20 and cuda.events and cuda.memory.fills and all(cuda.memory.fills)
    assert "texts equal to generate's" in text and "texts equal to plain decoding's" in text
    assert "2 of 2 lanes wrote the same text" in text and "| evaluation | done |" in text
    run_file, evaluation = (
        json.loads(path.read_text()) for path in (tmp_path / "day" / "run.json", tmp_path / "day" / "evaluation.json")
    )
    assert run_file["pair"]["target"]["engine"] == "cuda-graphs" and run_file["machine"]["gpu"]
    assert evaluation["data"]["setting"]["machine"]["gpu"], "compare and evaluate take the GPU by themselves"
    assert "tiny, float32, cuda" in text and "8B/1B-shaped, float32, cuda" in text
    assert [row for row in REPORTED if text.count(row) < 2] == [], "of both pairs"
    assert list(run_day(tmp_path / "day", 30.0, run)) == [f"{step}: done before." for step in steps]
