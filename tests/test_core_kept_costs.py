"""Kept cost curves, found again, checked and measured again; and the thresholds that they choose."""

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from decoding.analysis.tuning import Chosen, chosen_here
from decoding.analysis.validation import write_validation
from decoding.backends import base
from decoding.comparison import compare as compare_module
from decoding.comparison import kept_costs
from decoding.comparison.compare import Comparison
from decoding.comparison.costs import TRIED_SL, Timer, adjusted
from decoding.comparison.kept_costs import (
    MAX_AGE,
    KnownCosts,
    bucket,
    joined,
    measure_asked,
    prepare_usual,
    set_policies,
)
from decoding.comparison.prepare import prepare
from decoding.engines.kept_trials import age_of
from decoding.files import cache_folder, costs_folder
from decoding.lookahead.fitted import FOLDER, write_policy
from decoding.records.pairs import PairDescription
from decoding.records.request import DEFAULT_LANES, CompareRequest
from decoding.records.trace import Costs, Run
from viz.choices import lane_choices, set_here
from viz.settings import command_line

from .learned_heads import TUNED, make_file
from .runs import make_costs
from .test_learned_choosing import DRAFT, TARGET, costs, make_recorded
from .toy import ToyPair, shape_of

LANES = ["autoregressive", "static:3", "oracle"]
COSTS = make_costs(0.1, 0.02, drafts=["small"], length=65, first_step={"small": 0.05}, decision={})


@pytest.fixture
def known(tmp_path):
    return KnownCosts(ToyPair(), tmp_path)


def request(**changes) -> CompareRequest:
    return CompareRequest(**{"prompt": "abcabc", "lanes": LANES, "max_new_tokens": 30, "repeats": 1, **changes})


def run_and_stages(known: KnownCosts, **changes):
    """The run, and the stages of its progress events."""
    comparison = Comparison(prepare(request(**changes), known.pair, known.chosen), known, lambda: False, "run")
    stages = [data["stage"] for kind, data in comparison.events() if kind == "progress"]
    return comparison.run, stages


@pytest.fixture
def as_kept(monkeypatch):
    """The machine is as fast as it was."""
    monkeypatch.setattr(compare_module, "adjusted", lambda kept, prepared, plain_s: kept)


def test_the_home_folder_may_be_written_as_a_tilde(monkeypatch):
    monkeypatch.setenv("SPECULOSCOPE_CACHE", "~/here")
    monkeypatch.delenv("SPECULOSCOPE_COSTS", raising=False)
    assert cache_folder() == Path.home() / "here" == costs_folder().parent
    monkeypatch.setenv("SPECULOSCOPE_COSTS", "~/there")
    assert costs_folder() == Path.home() / "there"


def test_the_first_run_measures_and_the_next_one_finds(known, as_kept):
    first, stages = run_and_stages(known)
    assert stages.count("measuring") > 1 and first.costs.measured is None
    again = KnownCosts(ToyPair(), known.folder)  # another process
    second, stages = run_and_stages(again)
    assert stages.count("measuring") == 1 and second.costs.measured is not None
    assert second.costs.verify_curve == first.costs.verify_curve and second.costs.draft_step == first.costs.draft_step


def test_lanes_that_are_warm_are_not_warmed_again(known, as_kept):
    assert run_and_stages(known)[1].count("warming up") == 3
    assert run_and_stages(known)[1].count("warming up") == 0


def test_a_run_made_to_be_kept_measures_for_itself(known, as_kept):
    run_and_stages(known)
    assert run_and_stages(known, repeats=5)[0].costs.measured is None


def test_curves_at_another_context_serve_until_there_are_own_ones(known):
    known.keep(["small"], 4000, replace(COSTS, verify_curve=[1.0, 3.0]))
    known.keep(["small"], 100, COSTS)
    assert known.find(["small"], 120).verify_curve == COSTS.verify_curve and not known.tasks
    assert known.find(["small"], 2000).verify_curve == [1.0, 3.0] and known.tasks == [("small", 2048)]
    known.keep(["small"], 100, COSTS)
    assert known.tasks == [("small", 2048)], "others are still to be measured"


def test_curves_of_another_pair_or_machine_are_not_taken(known):
    known.keep(["small"], 100, COSTS)
    assert known.find(["small"], 100) is not None and known.find(["weak"], 100) is None
    other = ToyPair()
    other.target.info = replace(other.target.info, fingerprint="other weights")
    assert KnownCosts(other, known.folder).find(["small"], 100) is None
    other.target.info = replace(known.pair.target.info, threads=7)
    assert KnownCosts(other, known.folder).find(["small"], 100) is None


def test_the_cost_of_decisions_is_kept_with_the_draft_that_they_were_about(known, as_kept, monkeypatch):
    cost = {"static:2": 0.01, "weak/static:4": 0.03, "weak/static:2": 0.05}
    monkeypatch.setattr(compare_module, "measure_decision", lambda prepared, lane, costs: cost[lane.text])
    run, _ = run_and_stages(known, lanes=list(cost))
    assert run.costs.decision == {"static": pytest.approx(0.03)}, "of all lanes"
    kept = [known.find([draft], 21).decision["static"] for draft in ("small", "weak")]
    assert kept == pytest.approx([0.01, 0.04])


def test_several_drafts_are_joined(known):
    known.keep(["small"], 100, COSTS)
    known.keep(["ngram"], 100, make_costs(0.001, 1.0, drafts=["ngram"], length=2, first_step={"ngram": 0.0}))
    found = known.find(["small", "ngram"], 100)
    assert found.draft_step == {"small": 0.1, "ngram": 0.001} and found.verify_curve == COSTS.verify_curve
    assert known.find(["small", "weak"], 100) is None
    one, two = (
        replace(COSTS, measured=date, decision={"disco": d}) for date, d in (("2026-02", 0.1), ("2026-01", 0.2))
    )
    assert (joined([one, two]).measured, joined([one, two]).decision) == ("2026-01", {"disco": 0.1})


OLD = {"measured": (datetime.now(timezone.utc) - 2 * MAX_AGE).isoformat()}
BUSY = {"doubt": 0.5}  # readings that contradict each other


@pytest.mark.parametrize("about", [OLD, BUSY])
def test_curves_that_are_old_or_doubtful_serve_and_are_asked_for_again(known, about):
    known.keep(["small"], 100, COSTS)
    (path,) = known.folder.glob("*.json")
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"costs": kept["costs"] | about}))
    for _ in range(2):
        assert known.find(["small"], 100).verify_curve == COSTS.verify_curve
        assert known.tasks == [("small", bucket(100))]
    measure_asked(known, lambda: False)
    assert not known.tasks and known.find(["small"], 100).verify_curve != COSTS.verify_curve


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"setting": 1}'])
def test_a_broken_file_is_measured_again(known, content):
    known.keep(["small"], 100, COSTS)
    (path,) = known.folder.glob("*.json")
    path.write_bytes(content)
    assert known.find(["small"], 100) is None


def adjusted_to(monkeypatch, kept: Costs, *, check: float, draft: float) -> Costs:
    """``kept`` after a check of TRIED_SL guesses that took so many plain passes, and as many draft steps."""

    def read(self, name, lengths):
        self.verifications[name][TRIED_SL], self.drafts[name][TRIED_SL] = [check], [draft]
        self.plain = [1.0]
        return iter(())

    monkeypatch.setattr(Timer, "read", read)
    return adjusted(kept, prepare(request(), ToyPair()), 1.0)


def test_curves_stay_where_they_fit_and_are_bent_through_what_was_read_where_they_do_not(monkeypatch):
    kept = replace(COSTS, measured="2026-01-01T00:00:00+00:00")
    assert adjusted_to(monkeypatch, kept, check=1.12, draft=0.57) == replace(kept, target_s=1.0)
    found = adjusted_to(monkeypatch, kept, check=2.0, draft=1.1)
    assert found.measured is None and found.verify(6) == pytest.approx(2.0)
    assert found.start(5, "small") + 5 * found.draft_step["small"] == pytest.approx(1.1)
    assert found.verify_curve == sorted(found.verify_curve) and found.verify_curve[0] == 1.0


def test_curves_of_a_draft_that_may_decline_have_the_target_s_present_pace():
    prepared = prepare(request(lanes=["autoregressive", "ngram/static:2"]), ToyPair())
    assert adjusted(COSTS, prepared, 2.0) == replace(COSTS, target_s=2.0)
    assert adjusted(COSTS, prepared, None) == COSTS


def test_a_misfit_is_measured_again_in_idle_time(known, monkeypatch):
    run_and_stages(known)
    bent = lambda kept, prepared, plain_s: replace(kept, measured=None)  # noqa: E731
    monkeypatch.setattr(compare_module, "adjusted", bent)
    run_and_stages(known)
    assert known.tasks == [("small", bucket(6 + 15))] and known.misfits
    tried = []
    monkeypatch.setattr("decoding.comparison.kept_costs.try_again", lambda model, rows: tried.append(model))
    measure_asked(known, lambda: True)
    assert tried == []
    measure_asked(known, lambda: False)
    assert tried[0] is known.pair.target and not known.misfits and not known.tasks
    measure_asked(known, lambda: False)
    assert len(tried) == len(set(map(id, tried)))


def test_idle_time_ends_as_soon_as_somebody_wants_something(known):
    known.ask_for("small", 100)
    asked = iter(range(10))
    measure_asked(known, lambda: next(asked) >= 5)
    assert known.tasks and next(asked) == 6
    measure_asked(known, lambda: False)
    assert not known.tasks


def test_what_a_usual_run_needs_is_there_before_anybody_asks(known, as_kept):
    prepare_usual(known, lambda: False)
    assert known.warm >= {"autoregressive", "static:5", "oracle"}
    _, stages = run_and_stages(known, lanes=["autoregressive", "static:5", "oracle"], max_new_tokens=60)
    assert "warming up" not in stages and stages.count("measuring") == 1


def test_ages_that_cannot_be_read_are_old():
    assert age_of("yesterday") == timedelta.max == age_of(COSTS.measured)
    assert age_of("2026-01-01T00:00:00") == age_of("2999-01-01T00:00:00+00:00") == timedelta.max


# -- thresholds chosen for this machine's costs: kept with the curves, used by runs, and written into them

CHOSEN = Chosen(3, {"disco": "0.65", "specdecpp": "0.35", "costaware": "1.2"})


@pytest.fixture
def fitted(own_costs, tmp_path):
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


def run_of(known: KnownCosts, lanes: list[str]) -> Run:
    return run_and_stages(known, lanes=lanes)[0]


def shapes(run) -> list:
    return [shape_of(trace) for trace in run.lanes]


def test_curves_choose_in_idle_time_and_keep_what_they_chose(fitted, monkeypatch):
    fitted.keep(["small"], 100, measured())
    assert fitted.chosen("small") is None and fitted.is_unset("small")
    set_policies(fitted, lambda: True)
    assert fitted.is_unset("small"), "somebody wanted something"
    set_policies(fitted, lambda: False)
    chosen = fitted.chosen("small")
    assert set(chosen.arguments) == set(TUNED) and not fitted.is_unset("small")
    assert KnownCosts(fitted.pair).chosen("small") == chosen, "another process finds it"
    monkeypatch.setattr(kept_costs, "now", lambda: "2040-01-01T00:00:00+00:00")
    fitted.keep(["small"], 100, measured(0.2, 2.0))
    assert fitted.is_unset("small") and fitted.chosen("small") == chosen, "it serves until the new curves have chosen"
    set_policies(fitted, lambda: False)
    assert fitted.chosen("small").static < chosen.static


def test_the_page_reads_the_same_choice_without_models_until_policies_are_fitted_again(fitted):
    folder = fitted.pair.draft_folders["small"] / FOLDER
    assert chosen_here(folder) is None
    fitted.keep(["small"], 100, measured())
    set_policies(fitted, lambda: False)
    (costs_folder() / "broken.json").write_text("{")
    assert chosen_here(folder) == fitted.chosen("small")
    write_policy(folder, make_file("disco", seed=3))
    assert chosen_here(folder) is fitted.chosen("small") is None, "it was for the policies before"
    assert fitted.is_unset("small")


def test_curves_in_a_format_that_no_trial_chose_do_not_speak_for_the_machine(fitted):
    folder = fitted.pair.draft_folders["small"] / FOLDER
    fitted.keep(["small"], 100, measured())
    set_policies(fitted, lambda: False)
    own, (path,) = chosen_here(folder), costs_folder().glob("*.json")
    kept = json.loads(path.read_text())
    target = kept["setting"]["target"]
    trial = {"model": target, "machine": kept["setting"]["machine"], "chosen": target["dtype"]}
    later = {"chosen": {**kept["chosen"], "static": 19, "measured": "2999"}, "costs": kept["costs"]}
    later["setting"] = {**kept["setting"], "target": {**target, "dtype": "int4"}}
    (costs_folder() / "later.json").write_text(json.dumps(later))
    assert chosen_here(folder).static == 19, "nothing was tried"
    (costs_folder() / "format-x.json").write_text(json.dumps(trial))
    assert chosen_here(folder) == own


def test_the_form_offers_the_best_fixed_sl_of_this_machine(fitted, monkeypatch):
    drafts = {"small": str(fitted.pair.draft_folders["small"])}
    described = PairDescription("toy", "Toy", "embedded", "t", drafts, "small", fitted={"small": ["disco"]})
    monkeypatch.setattr(base, "describe_pairs", lambda: [replace(described, best_sl={}, set_here={})])
    assert set_here(base.pairs_here(), "") == "" and lane_choices(base.pairs_here()) == lane_choices([described])
    fitted.keep(["small"], 100, measured())
    set_policies(fitted, lambda: False)
    best, pairs = fitted.chosen("small").static, base.pairs_here()
    assert (f"Best static SL here: {best}", f"static:{best}") in lane_choices(pairs)
    assert len({lane for _, lane in lane_choices(pairs)}) == len(lane_choices(pairs))
    said = f"Set for this machine on validation prompts: best static SL {best}, DISCO stops"
    assert all(set_here(pairs, name).startswith(said) for name in ("", "toy"))
    assert set_here([replace(described, name="other"), *pairs], "other") == ""


@pytest.mark.parametrize("damage", [lambda chains: chains.write_bytes(b"broken"), lambda chains: chains.unlink()])
def test_chains_that_cannot_be_used_or_are_not_there_choose_nothing_and_break_nothing(fitted, damage):
    fitted.keep(["small"], 100, measured())
    damage(fitted.pair.draft_folders["small"] / FOLDER / "validation.json.xz")
    set_policies(fitted, lambda: False)
    assert fitted.chosen("small") is None and not fitted.is_unset("small")


def test_the_usual_run_is_set_before_anybody_asks(fitted):
    prepare_usual(fitted, lambda: False)
    chosen = fitted.chosen("small")
    assert f"disco:{chosen.arguments['disco']}" in fitted.warm
    measure_asked(fitted, lambda: False)
    assert fitted.chosen("small") == chosen


def test_a_run_uses_what_was_chosen_and_names_it(fitted, monkeypatch):
    monkeypatch.setattr(KnownCosts, "chosen", lambda self, draft: CHOSEN)
    run = run_of(fitted, ["autoregressive", "static:5", "disco", "specdecpp:auto", "small/costaware"])
    names = ["autoregressive", "static:5", "disco:0.65", "specdecpp:0.35", "small/costaware:1.2"]
    assert [trace.lane for trace in run.lanes] == run.settings.lanes == names
    assert f"--lanes={','.join(names)}" in command_line(run.settings)
    assert run_of(fitted, list(DEFAULT_LANES)).settings.lanes == ["autoregressive", "static:5", "disco:0.65", "oracle"]


def test_a_number_in_a_lane_wins(fitted, monkeypatch):
    monkeypatch.setattr(KnownCosts, "chosen", lambda self, draft: CHOSEN)
    lanes = ["disco:0.4", "specdecpp:0.9", "costaware:0.7"]
    assert run_of(fitted, lanes).settings.lanes == lanes
    assert run_of(fitted, ["disco:0.65", "disco"]).settings.lanes == ["disco:0.65", "disco"], "each lane once"


def test_the_named_lanes_decide_alike_under_other_curves(fitted, as_kept, monkeypatch):
    """Policies that weigh the costs of their run do so if they are given those of the run that is repeated."""
    monkeypatch.setattr(KnownCosts, "chosen", lambda self, draft: CHOSEN)
    fitted.keep(["small"], 21, measured(0.02, 1.02))
    here = run_of(fitted, ["autoregressive", "disco", "specdecpp", "static:3"])
    elsewhere = KnownCosts(fitted.pair, costs_folder() / "elsewhere")
    elsewhere.keep(["small"], 21, measured(0.4, 3.0))
    there = run_of(elsewhere, here.settings.lanes)
    assert there.costs.verify_curve != here.costs.verify_curve
    assert [trace.lane for trace in there.lanes] == [trace.lane for trace in here.lanes]
    assert shapes(there) == shapes(here)
    weighing = ["autoregressive", "costaware:1.1", "throughput", "disco"]
    fitted.sets_lanes = elsewhere.sets_lanes = False
    here, there = run_of(fitted, weighing), run_of(elsewhere, weighing)
    assert shapes(there) != shapes(here)
    elsewhere.given = here.costs
    again = run_of(elsewhere, weighing)
    assert shapes(again) == shapes(here)
    assert again.costs.decision == here.costs.decision and again.costs.verify_curve == here.costs.verify_curve
