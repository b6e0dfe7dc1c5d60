"""Thresholds chosen for this machine's costs: kept with the curves, used by runs, and written into them."""

import json
from dataclasses import replace

import pytest

from decoding.analysis.tuning import Chosen, chosen_here
from decoding.analysis.validation import write_validation
from decoding.backends import base
from decoding.comparison import compare as compare_module
from decoding.comparison import kept_costs
from decoding.comparison.compare import compare
from decoding.comparison.idle import measure_asked, prepare_usual, set_policies
from decoding.comparison.kept_costs import KnownCosts
from decoding.files import costs_folder
from decoding.lookahead.fitted import FOLDER
from decoding.lookahead.policy_files import write_policy
from decoding.records.pairs import PairDescription
from decoding.records.request import DEFAULT_LANES, CompareRequest
from decoding.records.run_file import run_from_json
from viz.choices import lane_choices, set_here
from viz.settings import command_line

from .learned_heads import TUNED, make_file
from .test_learned_choosing import DRAFT, TARGET, costs, make_recorded
from .toy import ToyPair, shape_of

CHOSEN = Chosen(3, {"disco": "0.65", "specdecpp": "0.35", "costaware": "1.2"})


pytestmark = pytest.mark.usefixtures("own_costs")


@pytest.fixture
def known(own_costs, tmp_path):
    """Of toys whose draft has fitted policies and validation chains."""
    pair = ToyPair()
    for model, fingerprint in ((pair.target, TARGET), (pair.draft("small"), DRAFT)):
        model.info = replace(model.info, fingerprint=fingerprint)
    pair.draft_folders = {"small": tmp_path / "small"}
    for policy in TUNED:
        write_policy(tmp_path / "small" / FOLDER, make_file(policy))
    write_validation(tmp_path / "small" / FOLDER, (TARGET, DRAFT), list(TUNED), make_recorded(4))
    return KnownCosts(pair)


def measured(c: float = 0.1, v6: float = 1.3):
    return replace(costs(c, v6), draft_step={"small": c})


def run_of(known: KnownCosts, lanes: list[str]):
    request = CompareRequest("abcabc", lanes=lanes, max_new_tokens=30, repeats=1)
    *_, (kind, data) = compare(request, known, lambda: False, "run")
    assert kind == "finished"
    return run_from_json(json.dumps(data["run"]))


def shapes(run) -> list:
    return [shape_of(trace) for trace in run.lanes]


def test_curves_choose_in_idle_time_and_keep_what_they_chose(known, monkeypatch):
    known.keep(["small"], 100, measured())
    assert known.chosen("small") is None and known.is_unset("small")
    set_policies(known, lambda: True)
    assert known.is_unset("small"), "somebody wanted something"
    set_policies(known, lambda: False)
    chosen = known.chosen("small")
    assert set(chosen.arguments) == set(TUNED) and not known.is_unset("small")
    assert KnownCosts(known.pair).chosen("small") == chosen, "another process finds it"
    monkeypatch.setattr(kept_costs, "now", lambda: "2040-01-01T00:00:00+00:00")
    known.keep(["small"], 100, measured(0.2, 2.0))
    assert known.is_unset("small") and known.chosen("small") == chosen, "it serves until the new curves have chosen"
    set_policies(known, lambda: False)
    assert known.chosen("small").static < chosen.static


def test_policies_that_are_fitted_again_are_chosen_for_again(known):
    known.keep(["small"], 100, measured())
    set_policies(known, lambda: False)
    write_policy(known.pair.draft_folders["small"] / FOLDER, make_file("disco", seed=3))
    assert known.chosen("small") is None and known.is_unset("small")


def test_the_page_reads_the_same_choice_without_models(known):
    folder = known.pair.draft_folders["small"] / FOLDER
    assert chosen_here(folder) is None
    known.keep(["small"], 100, measured())
    set_policies(known, lambda: False)
    (costs_folder() / "broken.json").write_text("{")
    assert chosen_here(folder) == known.chosen("small")


def test_the_form_offers_the_best_fixed_sl_of_this_machine(known, monkeypatch):
    drafts = {"small": str(known.pair.draft_folders["small"])}
    described = PairDescription("toy", "Toy", "embedded", "t", drafts, "small", fitted={"small": ["disco"]})
    monkeypatch.setattr(base, "describe_pairs", lambda: [replace(described, best_sl={}, set_here={})])
    assert set_here(base.pairs_here()) == "" and lane_choices(base.pairs_here()) == lane_choices([described])
    known.keep(["small"], 100, measured())
    set_policies(known, lambda: False)
    best, pairs = known.chosen("small").static, base.pairs_here()
    assert (f"Best fixed SL here: {best}", f"static:{best}") in lane_choices(pairs)
    assert len({lane for _, lane in lane_choices(pairs)}) == len(lane_choices(pairs))
    assert set_here(pairs).startswith(f"Set for this machine on validation prompts: best fixed SL {best}, DISCO stops")


@pytest.mark.parametrize("damage", [lambda chains: chains.write_bytes(b"broken"), lambda chains: chains.unlink()])
def test_chains_that_cannot_be_used_or_are_not_there_choose_nothing_and_break_nothing(known, damage):
    known.keep(["small"], 100, measured())
    damage(known.pair.draft_folders["small"] / FOLDER / "validation.json.xz")
    set_policies(known, lambda: False)
    assert known.chosen("small") is None and not known.is_unset("small")


def test_the_usual_run_is_set_before_anybody_asks(known):
    prepare_usual(known, lambda: False)
    chosen = known.chosen("small")
    assert f"disco:{chosen.arguments['disco']}" in known.warm
    measure_asked(known, lambda: False)
    assert known.chosen("small") == chosen


def test_a_run_uses_what_was_chosen_and_names_it(known, monkeypatch):
    monkeypatch.setattr(KnownCosts, "chosen", lambda self, draft: CHOSEN)
    run = run_of(known, ["autoregressive", "static:5", "disco", "specdecpp:auto", "small/costaware"])
    names = ["autoregressive", "static:5", "disco:0.65", "specdecpp:0.35", "small/costaware:1.2"]
    assert [trace.lane for trace in run.lanes] == run.settings.lanes == names
    assert f"--lanes={','.join(names)}" in command_line(run.settings)
    assert run_of(known, list(DEFAULT_LANES)).settings.lanes == ["autoregressive", "static:5", "disco:0.65", "oracle"]


def test_a_number_in_a_lane_wins(known, monkeypatch):
    monkeypatch.setattr(KnownCosts, "chosen", lambda self, draft: CHOSEN)
    lanes = ["disco:0.4", "specdecpp:0.9", "costaware:0.7"]
    assert run_of(known, lanes).settings.lanes == lanes
    assert run_of(known, ["disco:0.65", "disco"]).settings.lanes == ["disco:0.65", "disco"], "each lane once"


def test_the_named_lanes_decide_alike_under_other_curves(known, monkeypatch):
    """Policies that weigh the costs of their run do so if they are given those of the run that is repeated."""
    monkeypatch.setattr(KnownCosts, "chosen", lambda self, draft: CHOSEN)
    monkeypatch.setattr(compare_module, "adjusted", lambda kept, prepared, plain_s: kept)
    known.keep(["small"], 21, measured(0.02, 1.02))
    here = run_of(known, ["autoregressive", "disco", "specdecpp", "static:3"])
    elsewhere = KnownCosts(known.pair, costs_folder() / "elsewhere")
    elsewhere.keep(["small"], 21, measured(0.4, 3.0))
    there = run_of(elsewhere, here.settings.lanes)
    assert there.costs.verify_curve != here.costs.verify_curve
    assert [trace.lane for trace in there.lanes] == [trace.lane for trace in here.lanes]
    assert shapes(there) == shapes(here)
    weighing = ["autoregressive", "costaware:1.1", "throughput", "specdecpp:auto", "disco"]
    known.sets_lanes = elsewhere.sets_lanes = False
    here, there = run_of(known, weighing), run_of(elsewhere, weighing)
    assert shapes(there) != shapes(here)
    elsewhere.given = here.costs
    again = run_of(elsewhere, weighing)
    assert shapes(again) == shapes(here)
    assert again.costs.decision == here.costs.decision and again.costs.verify_curve == here.costs.verify_curve
