"""The commands whatif and evaluate, as typed by a user."""

import json

import pytest

from decoding.analysis.metrics import speedup
from decoding.cli.whatif import _as_run
from decoding.engines import pair
from decoding.evaluation import stages
from decoding.evaluation.results import load_result, save_result
from decoding.lookahead.lanes import parse_lane
from decoding.records.run_file import save_run
from decoding.records.suites import Prompt
from tests.commands import command
from tests.evaluations import make_evaluation
from tests.runs import make_run
from tests.toy import ToyPair


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.json"
    save_run(make_run(), path)
    return str(path)


def test_whatif_shows_a_row_for_every_lane(run_file):
    status, out, _ = command("whatif", run_file, "--lanes", "static:1..4,confidence:0.2..0.4/0.1,oracle")
    assert status == 0
    for lane in ("static:1", "static:4", "confidence:0.2", "confidence:0.3", "confidence:0.4", "oracle"):
        assert lane in out
    assert "With hindsight, on this text, oracle is the fastest of them." in out


def test_whatif_in_json_has_the_measured_figure_beside_the_simulated_one_at_the_costs_of_the_run(run_file):
    status, out, _ = command("whatif", run_file, "--lanes", "static:5,static:6", "--json")
    first, second = json.loads(out)
    assert status == 0 and first["lane"] == "static:5"
    assert first["speedup_measured"] == pytest.approx(first["speedup_simulated"])
    assert second["speedup_measured"] is None
    (free,) = json.loads(command("whatif", run_file, "--lanes", "static:5", "--cost-ratio", "0", "--json").out)
    assert free["speedup_simulated"] > first["speedup_simulated"] and free["speedup_measured"] is None
    assert free["iterations"] == first["iterations"]


def test_whatif_says_where_the_clock_ranks_the_lanes_otherwise(tmp_path):
    run = make_run(lanes=("autoregressive", "confidence:0.5", "confidence:0.3"))
    path = tmp_path / "run.json"
    words = ("whatif", str(path), "--lanes", "confidence:0.5,confidence:0.3")
    save_run(run, path)
    assert "Trust the clock" not in command(*words)[1]
    first = max(run.lanes[1:], key=lambda trace: speedup(run, trace).median)
    for repeat in first.repeats:
        repeat.rest_s = [seconds + repeat.decode_s for seconds in repeat.rest_s]
    save_run(run, path)
    other = next(trace.lane for trace in run.lanes[1:] if trace is not first)
    told = " ".join(command(*words).out.split())
    assert f"The simulation ranks {first.lane} first of the lanes that ran, the clock {other} (" in told


def test_whatif_of_a_policy_without_a_number_takes_that_of_the_run():
    run = make_run(lanes=("autoregressive", "disco:0.4", "oracle:best"))
    run.lanes[0].lane = run.lanes[0].policy = "warp"  # of another version
    asked = ("disco", "disco:0.6", "specdecpp", "other/disco", "oracle")
    assert [_as_run(run, parse_lane(one)).text for one in asked] == ["disco:0.4", *asked[1:]]


def test_evaluate_writes_its_reports_and_goes_on(tmp_path, monkeypatch):
    def load_suite(name, split=None, limit=None):
        return [Prompt(f"{split}-{i}", "code", split or "test", f"{split} {i}", "toy") for i in range(3)][:limit]

    monkeypatch.setattr(pair, "load_pair", lambda *arguments, **options: ToyPair(agree=0.85))
    monkeypatch.setattr(stages, "load_suite", load_suite)
    few = "--limit 2 --max-new-tokens 12 --lanes static:5,oracle --clock-prompts 1 --repeats 1"
    asked = ["evaluate", *few.split(), "--out", str(tmp_path)]
    status, out, err = command(*asked)
    assert status == 0 and "Latency and speedup" in out and "Wrote" in err
    assert {"report.md", "tables.csv", "result.json"} <= {path.name for path in tmp_path.iterdir()}
    assert all(f"| {label}" in (tmp_path / "report.md").read_text() for label in ("static:5", "oracle"))
    first = load_result(tmp_path / "result.json")
    assert command(*asked)[0] == 0
    again = load_result(tmp_path / "result.json")
    assert again.figures == first.figures  # the costs were frozen, too
    (tmp_path / "report.md").unlink()
    status, out, _ = command("evaluate", "--result", str(tmp_path / "result.json"), "--out", str(tmp_path))
    assert status == 0 and "Latency and speedup" in out and (tmp_path / "report.md").exists()
    assert load_result(tmp_path / "result.json") == again
    status, out, _ = command(*asked, "--json")
    assert status == 0 and json.loads(out)["schema"].startswith("speculoscope.evaluation/")


@pytest.mark.parametrize("words", [("--result", "result.json"), ("--limit", "2")])
def test_reports_go_into_a_folder_and_a_file_in_its_place_is_refused_before_anything_runs(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    save_result(make_evaluation(), tmp_path / "result.json")
    (tmp_path / "notes").write_text("mine")
    status, out, err = command("evaluate", *words, "--out", "notes")
    assert status == 2 and err.endswith("Cannot write into notes: it is a file. Name a folder; a new one is made.")
    assert not out and (tmp_path / "notes").read_text() == "mine"
