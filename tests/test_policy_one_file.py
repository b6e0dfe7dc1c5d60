"""A policy is one file: put on the package's path, it is on the page, in every command and in an evaluation."""

import importlib
import json
import sys

import pytest

import decoding.lookahead
from decoding.backends.recorded import RecordedBackend
from decoding.evaluation import stages
from decoding.evaluation.options import EvaluationOptions, default_lanes
from decoding.evaluation.report import tables_of
from decoding.evaluation.stages import open_evaluation
from decoding.lookahead.lanes import parse_lane
from decoding.lookahead.spec import all_specs
from decoding.records.run_file import load_run
from decoding.records.suites import Prompt
from viz.export import export_lesson
from viz.figures.evaluation import draw_evaluation, sweeps
from viz.lessons import read_lesson, shipped_lessons
from viz.page import build_page
from viz.player.payload import run_payload

from .commands import command
from .toy import ToyPair

SOURCE = '''"""Long and short iterations alternate."""

from .base import LaneContext, PlannedPolicy
from .spec import Argument, PolicySpec


class Alternate(PlannedPolicy):
    name = "alternate"

    def __init__(self, longest: int) -> None:
        self.longest = longest

    def reset(self, context: LaneContext) -> None:
        self.sl = 1

    def planned(self, start: int) -> int:
        return self.sl

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        self.sl = self.longest if self.sl == 1 else 1


SPEC = PolicySpec(
    Alternate,
    title="Alternating",
    caption="one guess and {argument} guesses in turn",
    source="a test",
    order=25,
    argument=Argument("longer SL", 2, 20, "alternate:6", whole=True, default=4, sweep=(2, 6, 12)),
    offered=("alternate:6",),
    evaluated=("alternate",),
)
'''


@pytest.fixture(scope="module", autouse=True)
def alternate(tmp_path_factory):
    """The new policy's one file, while these tests run."""
    folder = tmp_path_factory.mktemp("policy")
    (folder / "alternate.py").write_text(SOURCE)
    decoding.lookahead.__path__.append(str(folder))
    all_specs.cache_clear()
    importlib.invalidate_caches()
    yield
    decoding.lookahead.__path__.remove(str(folder))
    sys.modules.pop("decoding.lookahead.alternate")
    all_specs.cache_clear()


@pytest.fixture(scope="module")
def run_file(tiny_pair, tmp_path_factory):
    """A run of the new policy, made by the command line."""
    target, draft = tiny_pair
    path = tmp_path_factory.mktemp("run") / "run.json"
    words = f"compare --prompt hello --target {target} --draft {draft} --dtype float32 --repeats 1 --max-new-tokens 24"
    assert command(*words.split(), "--lanes", "autoregressive,alternate:3", "--out", str(path)).status == 0
    return str(path)


def test_it_runs_and_writes_the_target_own_text(run_file):
    plain, lane = load_run(run_file).lanes
    assert lane.policy == "alternate" and lane.verdict.same and lane.output == plain.output
    assert {iteration.n_drafted for iteration in lane.iterations[:-2]} == {1, 3}


def test_what_if_replays_it_as_it_ran_and_at_other_arguments(run_file):
    told = command("whatif", run_file, "--lanes", "alternate:2..4", "--json").out
    found = {one["lane"]: one for one in json.loads(told)}
    assert list(found) == ["alternate:2", "alternate:3", "alternate:4"]
    live = [[it.start, it.n_drafted, it.n_accepted] for it in load_run(run_file).lanes[1].iterations]
    assert found["alternate:3"]["iterations"] == live


def test_the_commands_know_it(run_file):
    listed = {one["policy"]: one for one in json.loads(command("policies", "--json").out)}
    assert listed["alternate"]["what"] == "one guess and 4 guesses in turn"
    assert (
        "The longer SL must be a whole number from 2 to 20"
        in command("whatif", run_file, "--lanes", "alternate:99").err
    )


def test_the_page_offers_it_and_names_it(run_file, tmp_path):
    page = build_page(RecordedBackend(tmp_path), tmp_path)
    lanes = next(block for block in page.blocks.values() if getattr(block, "elem_id", None) == "lanes")
    assert "alternate:6" in [value for _, value in lanes.choices]
    shown = run_payload(load_run(run_file))["lanes"][1]
    assert (shown["name"], shown["caption"]) == ("Alternating 3", "one guess and 3 guesses in turn")


def test_the_lessons_show_it_by_its_record_and_say_what_they_cannot_simulate(run_file, browser, tmp_path):
    """No JavaScript is written for it: what it did is there, what it would do elsewhere is not made up."""
    lesson = json.loads(json.dumps(shipped_lessons()[0]))
    show = {"view": "steps", "find": "rejection"}
    lesson["steps"] = [
        {"title": lane, "text": ["-"], "show": {**show, "lane": lane}} for lane in ("alternate:3", "alternate:5")
    ]
    file = tmp_path / "lesson.html"
    file.write_text(
        export_lesson(read_lesson(json.dumps(lesson)), run_payload(load_run(run_file), details=True)), encoding="utf-8"
    )
    page, faults = browser.new_page(), []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(file.as_uri())
    shown = page.locator(".sl-steps select").first
    assert shown.evaluate("node => node.selectedOptions[0].text").startswith("Alternating 3 (")
    assert "Alternating 5" not in page.locator(".sl-lesson-text").inner_text()
    page.locator(".sl-turn .sl-main").click()
    assert "Alternating 5 did not run here and cannot be simulated" in page.locator(".sl-missing").inner_text()
    page.evaluate("learn.goTo({ place: 'whatif' })")
    assert page.locator(".sl-whatif .sl-bars li", has_text="Alternating 3").count() == 1
    page.evaluate("learn.goTo({ place: 'play' })")
    page.locator("#sl-start").click()
    assert faults == []
    page.close()


def test_an_evaluation_has_its_row_and_its_figures(tmp_path, monkeypatch):
    prompts = [Prompt(f"p{n}", "code", "test", f"text number {n}", "toy") for n in range(3)]
    monkeypatch.setattr(stages, "load_suite", lambda name, split=None, limit=None: prompts[:limit])
    assert "alternate" in default_lanes()
    options = EvaluationOptions(limit=3, validation_limit=2, max_new_tokens=16, clock_prompts=1, repeats=1)
    result = list(open_evaluation(options, ToyPair(agree=0.85), tmp_path).run())[-1]
    unlearned = {name for name, spec in all_specs().items() if not (spec.learned or spec.branches)}
    assert unlearned <= {parse_lane(lane).policy for lane in result.lanes.values()}
    assert "alternate" in result.lanes and result.find("no_errors_s", "alternate")
    assert sweeps(result)["alternate"] == ["alternate:2", "alternate:6", "alternate:12"]
    assert all("alternate" in [row[0].text for row in table.rows] for table in tables_of(result)[:3])
    same = result.find("clock_texts_equal")
    assert same.value == same.n > 0
    pareto = next(one for one in draw_evaluation(result) if one.name == "eval-pareto")
    assert "Alternating" in [trace.name for trace in pareto.figure.data]
