"""Whole evaluations on toy models: texts, chains, clock, tables; stopped, killed and resumed."""

import gc
import itertools
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from decoding.backends.jobs import _key_of
from decoding.comparison.lane_run import LaneRun
from decoding.comparison.prepare import KINDS, prepare
from decoding.errors import UserError
from decoding.evaluation import collect, slices, stages, trees
from decoding.evaluation.advice import recommend
from decoding.evaluation.choices import TUNED, candidates_of, tuned_lanes
from decoding.evaluation.options import EvaluationOptions
from decoding.evaluation.report import markdown, setting_lines, tables_of
from decoding.evaluation.results import EvaluationResult, Progress
from decoding.evaluation.stages import open_evaluation
from decoding.evaluation.trees import GROWTHS, TITLE
from decoding.lookahead.lanes import parse_lane
from decoding.records.request import CompareRequest
from decoding.records.suites import Prompt
from tests.runs import make_costs
from tests.test_core_draft_kinds import Listener, feature_pair
from tests.toy import ToyModel, ToyPair, shape_of
from viz.figures.evaluation import draw_pareto
from viz.reports.report import EvaluationReport

OPTIONS = EvaluationOptions(
    limit=4,
    validation_limit=3,
    max_new_tokens=24,
    clock_prompts=2,
    repeats=2,
    minutes=None,
    lanes=["heuristic", "confidence:0.4", "static:5", "static-opt", "disco", "oracle", "oracle:best"],
)


COSTS = make_costs(drafts=("small", "weak"))


@pytest.fixture(autouse=True, scope="module")
def toys():
    """Short prompts of two suites in place of the real ones, and costs that are equal in every test."""

    def load_suite(name, split, limit):
        suites = ("prose", "code") * 3
        return [Prompt(f"{split}-{n}", suites[n], split, f"{split} prompt {n}", "toy") for n in range(6)][:limit]

    class Timer:
        def __init__(self, pair, drafts, prompt, context):
            self.c = {name: 0.001 if name == "ngram" else 0.1 for name in drafts}

        def rounds(self):
            yield 0.5

        def costs(self):
            return make_costs(rise=0.02, draft_step=self.c, decision={})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "load_suite", load_suite)
        patch.setattr(collect, "Timer", Timer)
        patch.setattr(collect, "measure_decision", lambda prepared, lane, costs, n_tokens: 0.001)
        yield


@pytest.fixture(scope="module")
def whole(toys, tmp_path_factory):
    """A whole evaluation: its folder, its steps, the lanes of each reading in their order, and its result."""
    folder, orders, decode = tmp_path_factory.mktemp("whole"), [], slices.Slices.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices.Slices, "run", lambda self, *of: (orders.append(of[1]), decode(self, *of))[1])
        steps, result = run(folder)
    return SimpleNamespace(folder=folder, steps=steps, orders=orders, result=result)


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of the folder of ``whole``."""
    return shutil.copytree(whole.folder, tmp_path / "copy")


def run(folder, options=OPTIONS, pair=None, cancel=lambda: False):
    steps = list(open_evaluation(options, pair or ToyPair(agree=0.85), folder, cancel).run())
    return steps[:-1], steps[-1]


def test_measuring_costs_shows_how_far_it_is_and_ends_there_when_it_is_stopped(whole, tmp_path):
    shares = [step.fraction for step in whole.steps if "checks cost" in step.message]
    assert len(shares) > 5 and shares == sorted(shares) and shares[0] == 0.0 and shares[-1] < 1.0
    said = [step.message for step in whole.steps if "decisions cost" in step.message]
    rounds = [f"prompt {number} of 3, heuristic" for number in (1, 2, 3)]
    assert [line.partition(": ")[2] for line in said if "heuristic" in line] == rounds
    assert len(set(said)) == len(said)
    seen = []
    steps = open_evaluation(OPTIONS, ToyPair(agree=0.85), tmp_path, lambda: len(seen) >= 2).run()
    seen.extend(step.stage for step in steps)
    assert seen == ["costs", "costs"]


def test_an_evaluation_ends_with_its_result(whole):
    orders, steps, result = whole.orders, whole.steps, whole.result
    assert [order[0] for order in orders] == [orders[0][0], *orders[0][:4]], "none always comes first"
    assert isinstance(result, EvaluationResult) and all(isinstance(step, Progress) for step in steps)
    assert {step.stage for step in steps} == {"costs", "chains", "clock", "tables"}
    assert all(0 <= step.fraction <= 1 for step in steps)
    assert list(result.lanes) == ["autoregressive", *(lane for lane in OPTIONS.lanes if lane != "disco")]
    assert result.lanes["static-opt"] == f"static:{result.static_opt}" != "static:0"
    assert any("disco was left out" in note for note in result.setting.notes)
    assert result.setting.prompts == {"prose": 2, "code": 2} and result.setting.validation_prompts == 3
    assert result.setting.engine == "toy"
    assert result.find("clock_speedup", "static:5").n == 2
    same = result.find("clock_texts_equal")
    lanes = len(set(result.lanes.values()) - {"oracle:best"})  # the oracle represents it
    assert same.value == same.n == 2 * 2 * lanes


def test_a_draft_with_a_chain_from_every_start_has_all_figures(tmp_path, monkeypatch):
    """It declares that it reads hidden states, reads the text alone, and so has the figures of a draft that does."""
    monkeypatch.setitem(KINDS, "listener", Listener)
    options = replace(OPTIONS, drafts="all", clock_prompts=0)
    alone, anew = (run(tmp_path / str(at), options, pair)[1] for at, pair in enumerate((ToyPair(), feature_pair())))
    found = [[one for one in result.figures if one.draft == "weak"] for result in (alone, anew)]
    assert found[0] == found[1] and len(found[0]) > 20


@pytest.mark.parametrize("seconds", [0.0, 1e-3, None])
def test_lanes_that_take_turns_write_what_they_write_alone(monkeypatch, seconds):
    """Slices of one iteration, of some, and none at all."""
    pair, lanes = ToyPair(agree=0.85), ["autoregressive", "static:5", "confidence:0.4", "weak/static:3"]
    prepared = prepare(CompareRequest("some prompt", lanes=lanes, max_new_tokens=48), pair)
    alone = {lane: LaneRun(prepared, parse_lane(lane), COSTS).run() for lane in lanes}
    if seconds is None:
        monkeypatch.setattr(ToyPair, "can_fork", False)
    else:
        monkeypatch.setattr(slices, "SLICE_S", seconds)
    found = slices.Slices(pair, COSTS, lambda: False).run(lambda: prepare(prepared.request, pair), lanes, {})
    assert list(found) == lanes and gc.isenabled()
    for lane, run in found.items():
        assert run.output == alone[lane].output and shape_of(run) == shape_of(alone[lane]), lane


def test_turns_go_to_the_shortest_text(monkeypatch):
    """Lanes are then at the same place of the text at the same time, and other load affects all of them."""
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    order = []

    class Observed(LaneRun):
        def decode(self, cancelled):
            for iteration in super().decode(cancelled):
                order.append((self.lane.text, len(self.output)))
                yield iteration

    monkeypatch.setattr(slices, "LaneRun", Observed)
    pair, lanes = ToyPair(agree=0.95), ["autoregressive", "static:5"]
    request = CompareRequest("some prompt", lanes=lanes, max_new_tokens=40)
    slices.Slices(pair, COSTS, lambda: False).run(lambda: prepare(request, pair), lanes, {})
    length = dict.fromkeys(lanes, 0)
    for lane, now in order:
        assert length[lane] == min(length.values())
        length[lane] = now
    assert length == dict.fromkeys(lanes, 40)


def after(n: int):
    """A cancellation that comes when it has been asked for more than ``n`` times."""
    asked = itertools.count(1)
    return lambda: next(asked) > n


def test_a_stopped_evaluation_goes_on_from_where_it_was(whole, tmp_path):
    steps = list(open_evaluation(OPTIONS, ToyPair(agree=0.85), tmp_path, after(150)).run())
    assert steps and all(isinstance(step, Progress) for step in steps)
    _, *kept = (tmp_path / "texts.jsonl").read_text().splitlines()
    assert 0 < len(kept) < 7
    again, result = run(tmp_path)
    repeated = [step for step in again if step.stage == "chains"]
    assert len(repeated) <= 7 - len(kept) + 1
    assert _timeless(result) == _timeless(whole.result)


def test_readings_are_kept_for_each_set_of_lanes_and_a_lost_text_is_written_again(whole, copied):
    run(copied, replace(OPTIONS, lanes=["static:3"]))
    texts = copied / "texts.jsonl"
    texts.write_text(texts.read_text()[:-20] + '\n{"another": "line"}\n')
    again, result = run(copied)
    assert _timeless(result) == _timeless(whole.result)
    before = whole.result.find("clock_speedup", "static:5")
    assert result.find("clock_speedup", "static:5") == before  # none was timed again
    assert len([step for step in again if step.stage == "chains"]) == 1


def _timeless(result: EvaluationResult) -> list:
    """What does not depend on the clock."""
    return [result.lanes, [one for one in result.figures if not one.metric.startswith("clock_")]]


def test_the_folder_of_another_evaluation_or_of_prompts_that_have_changed_is_refused(copied, monkeypatch):
    with pytest.raises(UserError, match="contains other work .different max_new_tokens"):
        run(copied, replace(OPTIONS, max_new_tokens=30))
    before = stages.load_suite
    written = lambda *which: [replace(one, prompt=f"{one.prompt}, but longer") for one in before(*which)]  # noqa: E731
    monkeypatch.setattr(stages, "load_suite", written)
    with pytest.raises(UserError, match="prompts have changed"):
        run(copied)


@pytest.mark.parametrize("key", ["choice", "chain"])
def test_a_damaged_record_is_refused(copied, key):
    chains = copied / "chain-small.jsonl"
    chains.write_text(chains.read_text().replace(f'"{key}":', f'"not {key}":'))
    with pytest.raises(UserError, match="A record is damaged: delete the evaluation's folder and start over"):
        run(copied)


def test_with_no_time_one_prompt_of_each_split_is_simulated_and_none_timed(tmp_path):
    for n in (1, 2):  # one more each time
        result = run(tmp_path, replace(OPTIONS, chain_minutes=0.0, minutes=0.0))[1]
        assert result.setting.validation_prompts == sum(result.setting.prompts.values()) == n
        assert result.figures and not any(one.metric.startswith("clock_") for one in result.figures)
    assert sum(run(tmp_path)[1].setting.prompts.values()) == 4


def test_chains_are_recorded_again_for_policies_that_were_fitted_again(tmp_path):
    pair, options = ToyPair(), replace(OPTIONS, lanes=["static:2"], clock_prompts=0)
    pair.draft_folders, keys = {"small": tmp_path / "small"}, set()
    (tmp_path / "small" / "policies").mkdir(parents=True)
    for content in ("one", "two"):
        (tmp_path / "small" / "policies" / "disco.json").write_text(content)
        run(tmp_path / "evaluation", options, pair)
        keys.add((tmp_path / "evaluation" / "chain-small.jsonl").read_text().splitlines()[0])
    assert len(keys) == 2


def test_an_evaluation_of_further_policies_measures_their_decisions_and_keeps_the_curves(tmp_path, monkeypatch):
    options = replace(OPTIONS, clock_prompts=0)
    before = run(tmp_path, replace(options, lanes=["static:5"]))[1].setting.costs.decision
    steps, result = run(tmp_path, replace(options, lanes=["confidence:0.4", "costtree"]))
    assert result.setting.costs.decision.keys() - before.keys() == {"confidence", "costtree"} and before
    assert all("decisions cost" in step.message for step in steps if step.stage == "costs")
    again = run(tmp_path, replace(options, lanes=["static:5"]))[0]
    assert not [step for step in again if step.stage == "costs"]
    monkeypatch.setattr("decoding.evaluation.collect.imitated", lambda: "avx2")
    imitating = run(tmp_path, replace(options, lanes=["static:5"]))[0]
    assert [step for step in imitating if step.stage == "costs"] and not [s for s in imitating if s.stage == "chains"]


def test_the_test_split_picks_nothing(tmp_path):
    """With other test prompts, static-opt stays the SL that validation chose."""
    options = replace(OPTIONS, clock_prompts=0)
    results = [run(tmp_path / str(limit), replace(options, limit=limit))[1] for limit in (1, 4)]
    assert results[0].static_opt == results[1].static_opt


def test_texts_that_end_early_are_evaluated_too(tmp_path):
    evaluation = open_evaluation(OPTIONS, ToyPair(agree=0.85, eos=3), tmp_path, lambda: False)
    *_, result = evaluation.run()
    assert result.value("tokens") < 4 * 24
    assert "eos" in {one.finish for one in evaluation.samples(evaluation.test, "small")}
    same = result.find("clock_texts_equal")
    assert same.value == same.n


@pytest.mark.parametrize("room, of", [(7, ""), (len("test prompt 0"), " of the validation split")])
def test_prompts_without_room_in_the_context_are_refused_before_anything_is_measured(tmp_path, room, of):
    """The validation prompts are six tokens longer than the test prompts: nothing could be chosen on them."""
    with pytest.raises(UserError, match=f"No prompt{of} leaves room"):
        run(tmp_path, pair=ToyPair(target_length=room + OPTIONS.max_new_tokens))


def test_a_draft_that_lacks_a_token_of_the_texts_is_refused_as_in_a_comparison(tmp_path):
    pair = ToyPair(vocab=18, eos=17)
    pair._drafts["small"] = ToyModel("small", 16, 0, 0.8)
    with pytest.raises(UserError, match="has 16 tokens, and the target needs others"):
        run(tmp_path, pair=pair)


def test_texts_that_are_all_empty_choose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(stages.Collector, "samples", lambda collector, prompts, draft: [])
    for drafts in ("", "all"):
        with pytest.raises(UserError, match="wrote nothing on the validation prompts"):
            run(tmp_path, replace(OPTIONS, drafts=drafts, clock_prompts=0))


def test_a_first_prompt_that_is_too_long_is_left_out(tmp_path, monkeypatch):
    load = stages.load_suite
    long = Prompt("long", "code", "validation", 200 * "x", "toy")
    monkeypatch.setattr(stages, "load_suite", lambda name, split, limit: [long, *load(name, split, limit)])
    assert run(tmp_path, replace(OPTIONS, clock_prompts=0), ToyPair(agree=0.85, target_length=100))[1].static_opt


def test_drafts_are_evaluated_with_prompt_lookup(tmp_path):
    _, result = run(tmp_path, replace(OPTIONS, drafts="all", clock_prompts=1, repeats=1))
    best = {draft.name: draft.best_policy for draft in result.drafts}
    assert set(best) == {"small", "weak", "ngram"}
    assert result.value("match_rate", draft="small") > result.value("match_rate", draft="weak")
    speedups = [result.value("speedup", best[name], draft=name) for name in ("small", "weak")]
    assert speedups[0] > speedups[1]
    assert list(result.by_sl("small")) == list(range(1, 21))
    timed = result.by_sl("small", "clock_speedup")
    assert 5 in timed and 4 not in timed
    assert recommend(result).draft in best
    assert result.drafts[0].name == "ngram"  # cheapest first


def test_stopped_drafts_go_on_too(tmp_path):
    options = replace(OPTIONS, drafts="all", clock_prompts=0)
    assert all(isinstance(step, Progress) for step in open_evaluation(options, ToyPair(), tmp_path, after(300)).run())
    assert run(tmp_path, options, ToyPair())[1].drafts


def test_a_learned_policy_without_a_number_gets_the_one_for_these_costs(monkeypatch):
    assert {"disco", "disco:0.5"} < set(candidates_of("disco")) and "costaware:1.2" in candidates_of("costaware")
    assert candidates_of("specdecpp:auto")[1:] == candidates_of("specdecpp")[1:] != []
    for own in ("disco:0.5", "costtree", "heuristic", "oracle:best"):
        assert candidates_of(own) == [own]
    monkeypatch.setattr("decoding.evaluation.choices.best_of", lambda lanes, *_: max(lanes))
    assert tuned_lanes(["disco", "heuristic"], [], COSTS) == {"disco": "disco:0.99", "heuristic": "heuristic"}


def test_trees_are_evaluated_where_they_are_named(tmp_path):
    lanes = ["static:5", "confidence:0.4", "tree:4", "tree-opt", "costtree", "oracle"]
    steps, result = run(tmp_path, replace(OPTIONS, lanes=lanes))
    assert result.lanes["tree-opt"] in TUNED["tree-opt"] and result.setting.notes == []
    same = result.find("clock_texts_equal")
    assert same.value == same.n == 2 * 2 * len(set(result.lanes.values()))
    for label in ("tree:4", "tree-opt", "costtree"):
        assert result.value("guesses_per_tree", label) >= result.value("tokens_per_target_pass", label) - 1
        parts = sum(result.value(part, label) for part in ("draft_s", "check_s", "decision_s", "loop_s"))
        assert parts == pytest.approx(result.value("latency_s", label))
        assert result.find("f1", label) is None and result.find("no_errors_s", label) is None
        assert result.find("clock_speedup", label).n == 2
    assert result.find("guesses_per_tree", "static:5") is None and "guesses per tree" in markdown(result)
    for label in ("tree:4", "tree-opt"):
        assert result.value("sweep_speedup", result.lanes[label]) == pytest.approx(result.value("speedup", label))
    tables = [table for section in EvaluationReport(result).content("x")["sections"] for table in section["tables"]]
    assert {"Cost tree", "Tree 4"} <= {row[0][0] for table in tables for row in table["rows"]}
    assert "Cost tree" in [trace.name for trace in draw_pareto(result).figure.data]
    again, second = run(tmp_path, replace(OPTIONS, lanes=lanes))
    assert [step.stage for step in again].count("chains") == 0 and second.figures == result.figures


def test_a_table_shows_trees_and_chains_at_other_growths_of_v(tmp_path, monkeypatch):
    chosen_on = set()

    def watched(choose):
        return lambda lanes, of, *more: (chosen_on.update(one.prompt for one in of), choose(lanes, of, *more))[1]

    for name in ("best_of", "tuned_lanes"):
        monkeypatch.setattr(trees, name, watched(getattr(trees, name)))
    lanes = ["static:5", "confidence:0.4", "tree-opt", "costtree"]
    result = run(tmp_path, replace(OPTIONS, lanes=lanes, clock_prompts=0))[1]
    assert chosen_on == {f"validation-{n}" for n in range(3)}
    chains = {one.metric: one for one in result.figures if one.metric.startswith("best_chain@")}
    assert result.value("sweep_speedup", chains["best_chain@1"].policy) == pytest.approx(chains["best_chain@1"].value)
    for label in ("tree-opt", "costtree"):
        assert result.value("tree_speedup@1", label) == pytest.approx(result.value("speedup", label))
        for growth in GROWTHS:
            chain, tree = chains[f"best_chain@{growth}"].value, result.value(f"tree_speedup@{growth}", label)
            assert result.value(f"tree_cut@{growth}", label) == pytest.approx(1 - chain / tree)
    assert chains["best_chain@0"].value > chains["best_chain@1"].value
    (table,) = (one for one in tables_of(result) if one.title == TITLE)
    assert [row[0].text for row in table.rows] == list(GROWTHS.values())
    flat = dict(zip(table.columns, table.rows[-2]))
    assert (flat["v(6)"].text, flat["v(9)"].text) == ("1.00", "1.00") and flat["v(17)"].value > 1.0


def test_a_draft_without_probabilities_leaves_out_what_needs_them_and_trees(tmp_path):
    lanes = ["static:2", "tree-opt", "costtree", "confidence:0.4", "disco"]
    result = run(tmp_path, replace(OPTIONS, lanes=lanes, draft="ngram", clock_prompts=0))[1]
    assert set(result.lanes) == {"autoregressive", "static:2", "static-opt"}
    notes = result.setting.notes
    assert sum("guesses one token for each place" in note for note in notes) == 2
    assert sum("decides by the draft's probabilities, and ngram has none" in note for note in notes) == 2
    assert not [one for one in result.figures if one.policy.startswith(("confidence", "entropy"))]
    assert "draft ngram, 1 thread" in setting_lines(replace(result.setting, draft_dtype="", threads=1))[0]


def test_a_draft_asked_for_by_name_runs_on_the_clock_and_stays_no_default(tmp_path):
    pair = ToyPair()
    del pair._drafts["small"]  # the default one: a lane that runs it fails
    _, result = run(tmp_path, replace(OPTIONS, lanes=["static:2"], draft="weak", clock_prompts=1), pair)
    assert list(result.lanes)[:2] == ["autoregressive", "static:2"] and list(tmp_path.glob("clock-*.jsonl"))
    assert pair.default_draft == "small"
    assert _key_of(replace(OPTIONS, draft="weak"))[:3] == ("", "", ""), "a client's evaluation loads the whole pair"
