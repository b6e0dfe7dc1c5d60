"""The player's payload: it must agree with the run, and be small."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from decoding.analysis import metrics
from decoding.analysis.steadiness import contradictions
from decoding.analysis.whatif import simulate_lane
from decoding.lookahead.lanes import parse_lane
from decoding.lookahead.registry import make_policy
from decoding.lookahead.spec import TWENTIETHS
from decoding.records.text import pieces
from decoding.records.trace import Verdict
from tests import runs
from tests.learned_heads import make_heads
from tests.runs import make_run
from viz.player import sweeps
from viz.player.names import lane_caption, lane_heading, lane_name
from viz.player.payload import TICKS_PER_SECOND, player_payload
from viz.player.sentences import check_fact, doubt, look, opening, verdict

LANES = ("autoregressive", "static:5", "confidence:0.5", "disco:0.6", "oracle")


@pytest.fixture(scope="module")
def run():
    return make_run(lanes=LANES)


@pytest.fixture(scope="module")
def payload(run):
    return player_payload(run, origin="recorded")


def kept_text(payload, lane):
    strings = payload["strings"]
    kept = []
    for fates, texts in zip(lane["fates"], lane["texts"]):
        kept += [strings[text] for fate, text in zip(fates, texts) if fate not in "rd"]
    return "".join(kept)


def test_kept_tokens_of_every_lane_spell_its_output(run, payload):
    for trace, lane in zip(run.lanes, payload["lanes"]):
        assert kept_text(payload, lane) == "".join(pieces(trace.output, run.vocab))


def test_split_characters_are_whole_in_every_lane():
    run = make_run(lanes=LANES, hostile=True, seed=3)
    payload = player_payload(run)
    texts = {kept_text(payload, lane) for lane in payload["lanes"]}
    assert texts == {"".join(pieces(run.lanes[0].output, run.vocab))}


def test_fates_and_times_are_those_of_one_repeat_and_the_flags_say_what_the_strips_show(run, payload):
    shown = metrics.replayed_repeat(run)
    plain = sum(payload["lanes"][0]["times"])
    for trace, lane in zip(run.lanes, payload["lanes"]):
        repeat = trace.repeats[shown]
        assert lane["speedup"]["replayed"] == pytest.approx(plain / sum(lane["times"]), rel=1e-3)
        assert sum(lane["times"]) / TICKS_PER_SECOND == pytest.approx(repeat.decode_s, rel=1e-3)
        assert [fates.count("a") for fates in lane["fates"]] == [it.n_accepted for it in trace.iterations]
        assert lane["starts"] == [it.start for it in trace.iterations]


def test_simulated_static_lanes_are_the_what_ifs(run, payload):
    options = payload["simulations"]["static"]["shallow"]["options"]
    assert [option["value"] for option in options] == list(range(1, 21))
    for option in (options[0], options[6], options[19]):
        expected = simulate_lane(run, option["lane"])
        assert list(zip(option["sl"], option["accepted"])) == [(n, a) for _, n, a in expected.iterations]
        assert option["speedup"] == pytest.approx(expected.speedup, abs=1e-4)
    best = metrics.static_opt(run)
    assert options[payload["simulations"]["static"]["shallow"]["best"]]["value"] == best[0]


def test_simulated_plain_decoding_takes_as_long_as_the_measured_one(run, payload):
    costs = payload["simulations"]["sources"]["shallow"]["costs"]
    simulated = len(run.baseline.output) * (costs["v"][0] + costs["o"]) * costs["unit_s"]
    assert simulated == pytest.approx(sum(payload["lanes"][0]["times"]) / TICKS_PER_SECOND, rel=1e-6)


def test_threshold_panels_replay_the_lane_as_it_ran(run, payload):
    panels = payload["thresholds"]
    assert [panel["name"] for panel in panels] == ["Confidence 0.5", "DISCO 0.6"]
    for panel, trace in zip(panels, (run.lanes[2], run.lanes[3])):
        assert {option["value"] for option in panel["options"]} >= set(TWENTIETHS)
        as_run = panel["options"][panel["initial"]]
        assert as_run["sl"] == [it.n_drafted for it in trace.iterations]
        assert as_run["accepted"] == [it.n_accepted for it in trace.iterations]
        recorded = [token.score for it in trace.iterations for token in it.drafted]
        for shown, score in zip(as_run["scores"], recorded, strict=True):
            assert shown is None or shown == pytest.approx(100 * score, abs=0.51)


@pytest.fixture
def cost_aware(monkeypatch):
    """A run with a costaware lane and its head installed."""
    heads = make_heads()
    made = make_run(lanes=("autoregressive", "static:5"))
    chain = made.chains["shallow"]
    for guesses in (chain.along, *chain.tails.values()):
        guesses.scores["costaware"] = list(guesses.p)
    monkeypatch.setattr(runs, "make_policy", lambda lane: make_policy(parse_lane(lane), heads))
    monkeypatch.setattr(sweeps, "heads_of", lambda run, draft: heads)
    made.lanes.append(runs.make_trace("costaware", chain, made.costs, made.settings, "length", Random(1), 5))
    return made


def test_the_cost_aware_policy_is_replayed_at_multiples_of_its_threshold(cost_aware):
    (panel,) = player_payload(cost_aware)["thresholds"]
    trace = cost_aware.lanes[-1]
    as_run = panel["options"][panel["initial"]]
    assert as_run["value"] == 1.0 and as_run["words"] == "its own threshold"
    assert as_run["sl"] == [it.n_drafted for it in trace.iterations] and any(as_run["sl"])
    for option in panel["options"]:
        asked = [(score, line) for score, line in zip(option["scores"], option["thresholds"], strict=True) if line]
        one = option["value"] * max(line for line in as_run["thresholds"] if line)
        assert all(line == pytest.approx(min(one, 1000), rel=0.1, abs=2) for _, line in asked)
        assert len(asked) <= sum(option["sl"]) and all(score is not None for score, _ in asked)
    drafted = [sum(option["sl"]) for option in panel["options"]]
    assert drafted[0] > sum(as_run["sl"]) > drafted[-1]  # a lower threshold lets more guesses pass
    assert panel["options"][panel["best"]]["speedup"] == max(option["speedup"] for option in panel["options"])


def test_no_panel_where_the_cost_aware_policy_has_been_fitted_anew(cost_aware, monkeypatch):
    heads = make_heads()
    heads["costaware"].tuned = {**heads["costaware"].tuned, "next": [-4.0, 0.1, 0.0]}
    monkeypatch.setattr(sweeps, "heads_of", lambda run, draft: heads)
    assert player_payload(cost_aware)["thresholds"] == []


def test_no_panel_where_the_pair_of_the_cost_aware_policy_is_not_here(cost_aware, monkeypatch):
    monkeypatch.undo()  # the pair "synthetic" is not installed
    assert player_payload(cost_aware)["thresholds"] == []


def test_a_run_without_chains_has_no_simulation():
    run = make_run(rule="sampling")
    run.chains.clear()
    for trace in run.lanes:
        trace.verdict = Verdict(same=None)
    payload = player_payload(run)
    assert payload["simulations"] == {} and payload["thresholds"] == []
    assert payload["verdict"]["kind"] == "free"


def test_four_lanes_of_two_thousand_tokens_stay_under_a_megabyte_and_a_half():
    wire = json.dumps(player_payload(make_run(size="large")), separators=(",", ":"))
    assert len(wire) < 1_500_000


def test_the_first_sentence_is_the_runs(run):
    ratio, name = max((metrics.replayed_speedup(run, trace), trace.lane) for trace in run.lanes[1:4])
    assert opening(run) == f"Here: the same 88 tokens, {ratio:.2f}× faster with {lane_name(name)}."
    other = next(trace for trace in run.lanes[1:4] if trace.lane != name)
    point = f"{metrics.replayed_speedup(run, other):.2f}× faster with {lane_name(other.lane)}"
    assert opening(run, point=other.lane) == (  # an example's sentence is about its point
        f"Here: the same 88 tokens, {point}, {ratio:.2f}× faster with {lane_name(name)}."
    )
    assert f"takes {run.costs.check(6):.2f} and" in check_fact(run)


def test_the_first_sentence_is_honest_when_slower_or_alone():
    slow = make_run(lanes=("autoregressive", "static:15"), match=0.3, c=0.6)
    ratio = metrics.replayed_speedup(slow, slow.lanes[1])
    assert ratio < 1 and f"{1 / ratio:.2f}× slower" in opening(slow)
    both = make_run(lanes=("autoregressive", "static:1", "static:15"), match=0.6, c=0.3)
    gain, loss = (metrics.replayed_speedup(both, trace) for trace in both.lanes[1:])
    assert gain > 1.05 and loss < 1 / 1.05, (gain, loss)  # a slow-down is never left unsaid
    assert f"{gain:.2f}× faster with Static 1, {1 / loss:.2f}× slower with Static 15." in opening(both)
    assert "nothing to compare the time with" in opening(make_run(lanes=("static:5", "oracle")))
    assert "by the target alone" in opening(make_run(lanes=("autoregressive",)))


def test_one_verdict_names_what_differs():
    run = make_run()
    assert verdict(run) == {"kind": "same", "text": "Same text in all four lanes."}
    run.lanes[1].verdict = Verdict(same=False, first_difference=12, gap=3e-5, near_tie=True)
    found = verdict(run)
    assert found["kind"] == "differs"
    assert found["text"] == (
        "Static 5 differs from output position 12 on: there the target's two best tokens are 3e-05 logits apart"
        " in bfloat16, a near tie."
    )


@pytest.mark.parametrize(
    ("lane", "name"),
    [
        ("autoregressive", "Plain"),
        ("wide-1x384/static:5", "Static 5 · wide-1x384"),
        ("specdecpp:auto", "SpecDec++ auto"),
        ("oracle:best", "Oracle best"),
        ("ngram/static:10", "Static 10 · ngram"),
    ],
)
def test_names_and_captions(lane, name):
    assert lane_name(lane) == name
    assert lane_heading(lane)["caption"] == lane_caption(lane) != ""


def test_every_text_stands_once(payload):
    strings = payload["strings"]
    assert len(strings) == len(set(strings))
    assert max(text for lane in payload["lanes"] for texts in lane["texts"] for text in texts) < len(strings)


def test_a_text_that_ended_at_once_is_answered_with_what_to_do(run):
    hint = "end the prompt within a line"
    short = make_run(n_tokens=3)
    for trace in short.lanes:
        trace.finish = "eos"
    assert hint in opening(short) and hint not in opening(run)
    for trace in short.lanes:
        trace.finish = "length"
    assert hint not in opening(short)


def test_the_first_guess_after_a_check_has_a_price_of_its_own(run):
    draft = run.pair.default_draft
    run.costs.first[draft] = 0.07
    c = run.costs.c[draft]
    assert check_fact(run).endswith(f"of the draft {c:.2f} to {c + 0.07:.2f}.")
    del run.costs.first[draft]
    assert check_fact(run).endswith(f"of the draft {c:.2f}.")


def test_repeats_that_are_far_apart_are_reported():
    run = make_run(lanes=("autoregressive", "static:5"), repeats=5)
    assert doubt(run) == "" and doubt(make_run(lanes=("static:5",))) == ""
    times = run.lanes[1].repeats
    times[0].check_s = [3 * second for second in times[0].check_s]
    assert doubt(run) == ""  # one of five may deviate
    times[1].check_s = [3 * second for second in times[1].check_s]
    found = metrics.speedup(run, run.lanes[1])
    assert f"vary ({found.low:.2f}× to {found.high:.2f}× over the repeats)" in doubt(run)
    assert player_payload(run)["fact"] == check_fact(run) + doubt(run)


def test_notes_on_lanes_stand_below_the_first_sentence():
    run = make_run(lanes=LANES)
    for trace in run.lanes:
        trace.notes = ["All passes ran eagerly."]
    run.lanes[1].notes = ["All passes ran eagerly.", "A repeat was left out.", "A repeat was left out."]
    name = lane_name(run.lanes[1].lane)
    assert player_payload(run)["fact"].endswith(f" All passes ran eagerly. {name}: A repeat was left out.")


def test_readings_that_contradict_each_other_are_reported_in_place_of_figures():
    run = make_run(lanes=("autoregressive", "static:5"))
    assert contradictions(run) == [] and not player_payload(run)["simulations"]["doubtful"]
    v = list(run.costs.v)
    run.costs.v[:] = [1.0, *(0.84 for _ in v[1:])]
    payload = player_payload(run)
    assert payload["sentence"].endswith("tokens, timed too unsteadily to say what was won.")
    assert payload["fact"].startswith("Timings are unsteady here (checking 6 tokens came out cheaper")
    assert "0.84" not in payload["fact"] and payload["simulations"]["doubtful"] and payload["lanes"][1]["note"] == ""
    run.costs.v[:] = [one * 2.5 if at else one for at, one in enumerate(v)]  # the replay is far from what was measured
    assert "Static 5 came out" in player_payload(run)["fact"]


def test_every_draft_that_ran_has_its_price_and_its_own_best_sl():
    run = make_run(lanes=("autoregressive", "static:5"))
    run.chains["slow"] = replace(run.chains["shallow"], draft="slow")
    run.costs.c["slow"] = 0.5
    run.pair.drafts["slow"] = run.pair.drafts["shallow"]
    run.lanes.append(replace(run.lanes[1], lane="slow/static:5", draft="slow", repeats=[]))
    payload = player_payload(run)
    assert f"{run.costs.c['shallow']:.2f} (shallow), 0.50 (slow)" in payload["fact"]
    assert set(payload["simulations"]["static"]) == {"shallow", "slow"}
    assert payload["simulations"]["static"]["slow"]["options"][4]["lane"] == "slow/static:5"
    assert "with slow" in payload["lanes"][2]["note"] and "with shallow" in payload["lanes"][1]["note"]


def test_what_one_looks_at_is_said_in_one_line(run):
    ways = "Four ways to let a small model guess for a big one"
    assert look(run) == f"{ways}; each colour is the fate of a guess."
    assert look(make_run(lanes=("autoregressive",))) == "One text, written by the target alone."
