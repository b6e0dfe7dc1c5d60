"""The player's payload: it must agree with the run, and be small."""

import json
import re
from dataclasses import asdict, replace

import pytest

from decoding.analysis import metrics
from decoding.analysis.run_costs import run_costs
from decoding.analysis.steadiness import contradictions, verdict
from decoding.lookahead.spec import TWENTIETHS
from decoding.records.trace import TokenText, Verdict
from tests.learned_heads import make_heads
from tests.runs import make_run, untimed
from viz.player import payload as payloads
from viz.player.names import lane_name
from viz.player.payload import TICKS_PER_SECOND, run_payload
from viz.player.sentences import badge_place, check_fact, doubt, look, opening

LANES = ("autoregressive", "static:5", "confidence:0.5", "disco:0.6", "oracle")


@pytest.fixture(scope="module")
def run():
    return make_run(lanes=LANES)


@pytest.fixture(scope="module")
def payload(run):
    return run_payload(run, origin="recorded")


def test_fates_and_times_are_those_of_one_repeat_and_the_flags_say_the_median(run, payload):
    shown = metrics.replayed_repeat(run)
    for trace, lane in zip(run.lanes, payload["lanes"]):
        repeat = trace.repeats[shown]
        assert lane["speedup"]["median"] == metrics.speedup(run, trace).median
        assert sum(lane["times"]) / TICKS_PER_SECOND == pytest.approx(repeat.decode_s, rel=1e-3)
        assert [fates.count("a") for fates in lane["fates"]] == [it.n_accepted for it in trace.iterations]
        assert lane["starts"] == [it.start for it in trace.iterations]
        assert list(map(len, lane["wrong"])) == [it.n_drafted - it.n_accepted for it in trace.iterations]


def test_a_lane_with_a_threshold_says_where_to_replay_it(run, payload):
    asked = [lane["threshold"] for lane in payload["lanes"]]
    assert [one is not None for one in asked] == [False, False, True, True, False]
    for one, trace in zip(asked[2:4], run.lanes[2:4]):
        assert set(one["values"]) >= set(TWENTIETHS) and one["fixed"] and one["explanation"]
        assert one["as_run"] == float(trace.lane.partition(":")[2]) and one["as_run"] in one["values"]
    adaptive = replace(run.lanes[2], lane="adaedl", policy="adaedl")
    one = run_payload(replace(run, lanes=[adaptive]))["lanes"][0]["threshold"]
    assert not one["fixed"] and one["as_run"] == 1.0 and 1.0 in one["values"]


def test_fitted_parameters_come_along_where_they_are_installed(run, monkeypatch):
    heads = make_heads()
    monkeypatch.setattr(payloads, "heads_of", lambda run, draft: heads)
    disco = heads["disco"].tuned
    shipped = {key: disco[key] for key in {*payloads.TUNED} & disco.keys()}
    assert run_payload(run)["tuned"] == {"shallow": {"disco": shipped}}
    monkeypatch.undo()
    assert run_payload(run)["tuned"] == {"shallow": {}}  # the pair "synthetic" is not installed


def test_only_the_learn_tab_gets_every_score_and_detail(run):
    small, whole = run_payload(run), run_payload(run, details=True)
    assert "details" not in small["lanes"][1]
    recorded = whole["lanes"][1]["details"][0]["tokens"][0]
    assert recorded["p_draft"] == run.lanes[1].iterations[0].drafted[0].p_draft and recorded["draft_top"]
    without = run_payload(replace(run, lanes=run.lanes[:2]))
    assert without["chains"]["shallow"]["along"]["scores"] == {}  # no lane decides by it
    assert whole["chains"]["shallow"] == asdict(run.chains["shallow"])


def test_four_lanes_of_a_thousand_tokens_stay_under_three_quarters_of_a_megabyte():
    wire = json.dumps(run_payload(make_run(n_tokens=1000, alternatives=2)), separators=(",", ":"))
    assert len(wire) < 750_000


def test_the_first_sentence_is_the_runs(run):
    ratio, name = max((metrics.speedup(run, trace).median, trace.lane) for trace in run.lanes[1:4])
    assert opening(run) == f"Here: the same 88 tokens, {ratio:.2f}× as fast with {lane_name(name)}."
    other = next(trace for trace in run.lanes[1:4] if trace.lane != name)
    point = f"{metrics.speedup(run, other).median:.2f}× as fast with {lane_name(other.lane)}"
    assert opening(run, point=other.lane) == (  # an example's sentence is about its point
        f"Here: the same 88 tokens, {point}, {ratio:.2f}× as fast with {lane_name(name)}."
    )
    assert badge_place(run).endswith("· 3 timings")
    drawn = replace(run.settings, rule="sampling", temperature=0.7, top_k=40, top_p=0.9)
    assert badge_place(replace(run, settings=drawn)).startswith("sampling at temperature 0.7, top-k 40, top-p 0.9 · ")
    stopped = replace(run, lanes=[replace(trace, repeats=trace.repeats[:1]) for trace in run.lanes])
    assert opening(stopped).endswith(" (1 of 3 timings).") and badge_place(stopped).endswith("· 1 of 3 timings")
    assert f"checking 6 takes {run_costs(run).verify(6) - 1:.0%} longer; a guess takes" in check_fact(run)


def test_of_a_long_prompt_the_end_is_shown():
    prompt = "".join(map(str, range(300)))
    assert payloads.prompt_end(prompt, False) == "…" + prompt[-400:] and payloads.prompt_end("x", True) == "x\n"


def test_the_first_sentence_is_honest_when_slower_or_alone():
    slow = make_run(lanes=("autoregressive", "static:15"), match=0.3, c=0.6)
    ratio = metrics.speedup(slow, slow.lanes[1]).median
    assert ratio < 1 and f"{ratio:.2f}× as fast with Static 15" in opening(slow)
    both = make_run(lanes=("autoregressive", "static:1", "static:15"), match=0.6, c=0.3)
    gain, loss = (metrics.speedup(both, trace).median for trace in both.lanes[1:])
    assert gain > 1.05 and loss < 1 / 1.05, (gain, loss)  # a slow-down is never left unsaid
    assert f"{gain:.2f}× as fast with Static 1, {loss:.2f}× as fast with Static 15." in opening(both)
    alone = run_payload(make_run(lanes=("static:5", "oracle")))
    assert "so there is no speedup" in alone["sentence"] and alone["lanes"][0]["speedup"] is None
    assert "by the target alone" in opening(make_run(lanes=("autoregressive",)))
    both.lanes[1].verdict = Verdict(same=None)  # nothing was compared
    assert "the same" in opening(slow) and "the same" not in opening(both)


def test_a_gain_that_the_reading_of_a_long_prompt_eats_up_is_called_so(run):
    assert "reading of the prompt" not in opening(run)
    long = make_run(lanes=LANES)
    for trace in long.lanes:
        for repeat in trace.repeats:
            repeat.prefill_s = 100.0 if trace is long.baseline else 120.0
    assert opening(long).endswith(" With the reading of the prompt, which the draft reads, too, 0.84×.")


def test_one_verdict_names_what_differs():
    run = make_run()
    assert verdict(run, lane_name) == {"kind": "same", "text": "Same text in all four lanes."}
    run.lanes[1].verdict = Verdict(same=False, first_difference=12, gap=3e-5, near_tie=True)
    found = verdict(run, lane_name)
    assert found["kind"] == "differs"
    assert found["text"] == (
        "Static 5 differs from output position 12 on: the target's two best tokens there are 3e-05 logits apart"
        " in bfloat16, a near tie."
    )
    run.lanes[1].verdict = Verdict(same=None)
    found = verdict(run, lane_name)
    assert found["kind"] == "free" and found["text"].startswith("Texts may differ: speculative sampling")


def test_every_token_has_its_text(run, payload):
    known = {token: TokenText(*rest) for token, rest in payload["vocab"].items()}
    assert known == {str(token): text for token, text in run.vocab.items()}


def test_a_text_that_ended_at_once_is_answered_with_what_to_do(run):
    hint, prompt = "end the prompt without a line break", "def f(x):\n"
    short = make_run(n_tokens=3, finish="eos", prompt=prompt)
    assert hint in opening(short)
    short.settings.chat = True  # a short answer is none that ended early
    for other in (short, make_run(n_tokens=3, finish="eos", prompt="x"), make_run(n_tokens=3, prompt=prompt), run):
        assert hint not in opening(other)


def test_the_first_guess_after_a_check_has_a_price_of_its_own(run):
    draft = run.pair.default_draft
    run = untimed(run)
    run.costs.first_step[draft] = 0.07
    c = run.costs.draft_step[draft]
    assert check_fact(run).endswith(f"; a guess takes {c:.0%} to {c + 0.07:.0%} of the time.")
    del run.costs.first_step[draft]
    assert check_fact(run).endswith(f"; a guess takes {c:.0%} of the time.")
    run.costs.verify_curve = [1.0, 1.3, 1.6, 1.9, 2.2, 2.3]
    del run.costs.draft_step[draft]
    assert check_fact(run) == "Compared with writing one token, checking 6 takes 2.30× as long."


def test_repeats_that_are_far_apart_are_reported():
    run = make_run(lanes=("autoregressive", "static:5"), repeats=5)
    assert doubt(run) == "" and doubt(make_run(lanes=("static:5",))) == ""
    times = run.lanes[1].repeats
    times[0].verify_s = [second / 3 for second in times[0].verify_s]
    assert doubt(run) == ""  # one of five may deviate, unless plain decoding was faster in it
    times[1].verify_s = [4 * second for second in times[1].verify_s]
    found = metrics.speedup(run, run.lanes[1])
    said = f" The timings of Static 5 vary ({found.low:.2f}× to {found.high:.2f}× over the repeats)"
    assert doubt(run).startswith(f"{said}; the machine may be busy. Run it again")
    assert run_payload(run)["fact"] == check_fact(run) + doubt(run)
    run.costs.verify_curve[1:] = [0.84] * len(run.costs.verify_curve[1:])  # which is said before it, with what to do
    assert doubt(run) == f"{said}."


def test_notes_on_lanes_stand_below_the_first_sentence():
    run = make_run(lanes=LANES)
    for trace in run.lanes:
        trace.notes = ["All passes ran eagerly."]
    run.lanes[1].notes = ["All passes ran eagerly.", "A repeat was left out.", "A repeat was left out."]
    name = lane_name(run.lanes[1].lane)
    assert run_payload(run)["fact"].endswith(f" All passes ran eagerly. {name}: A repeat was left out.")


def test_readings_that_contradict_each_other_are_reported_in_place_of_figures():
    run = make_run(lanes=("autoregressive", "static:5"))
    assert contradictions(run) == [] and not run_payload(run)["doubtful"]
    v = list(run.costs.verify_curve)
    run.costs.verify_curve[:] = [1.0, *(0.84 for _ in v[1:])]
    payload = run_payload(run)
    assert payload["sentence"].endswith("tokens, but timings vary too much to trust a speedup.")
    assert payload["fact"].startswith("Timings are unsteady here (checking 6 tokens came out cheaper")
    assert "0.84" not in payload["fact"] and payload["doubtful"] and payload["lanes"][1]["note"] == ""
    run.costs.verify_curve[:] = [1.0, *(2.5 * one for one in v[1:])]  # the replay is far from what was measured
    assert "Static 5 came out" in run_payload(run)["fact"]


def test_every_draft_that_ran_has_its_price_and_its_own_best_sl():
    run = make_run(lanes=("autoregressive", "static:5"))
    run.chains["slow"] = replace(run.chains["shallow"], draft="slow")
    run.costs.draft_step["slow"] = 0.5
    run.pair.drafts["slow"] = run.pair.drafts["shallow"]
    run.lanes.append(replace(run.lanes[1], lane="slow/static:5", draft="slow", repeats=[]))
    payload = run_payload(run)
    assert f"{run.costs.draft_step['shallow']:.0%} (shallow), 50% (slow) of the time." in payload["fact"]
    assert set(payload["chains"]) == {"shallow", "slow"}
    sl, gain = metrics.static_opt(run, "slow")
    assert [lane["note"] for lane in payload["lanes"]] == [
        "",
        "5 is the best static SL of this run with shallow (with hindsight, simulated).",
        f"Chosen: 5. Best static SL of this run with slow: {sl}, {gain:.2f}× simulated (with hindsight).",
    ]


def test_the_settings_say_how_the_run_was_made():
    assert ["rule", "coupling, temperature 0.8, seed 0"] in run_payload(make_run(rule="coupling"))["settings"]


def test_what_one_looks_at_is_said_in_one_line(run):
    ways = "Four ways to let a small model guess for a big one"
    assert look(run) == f"{ways}; colours show which guesses held."
    assert look(make_run(lanes=("autoregressive",))) == "One text, written by the target alone."


@pytest.mark.parametrize("seed", range(3))
def test_each_number_of_a_headline_is_that_of_the_card_of_its_lane(seed):
    run, said = make_run(lanes=LANES, seed=seed), set()
    for point in ("", *LANES[1:]):
        payload = run_payload(run, point=point)
        cards = {}
        for lane in payload["lanes"]:
            cards[lane["name"]] = next(one["text"] for one in lane["figures"] if one["key"] == "speedup")
        for number, name in re.findall(r"(\d+\.\d\d)× as fast with ([^,]+?)[.,](?: |$)", payload["sentence"]):
            assert cards[name].removeprefix("median ").startswith(f"{number}×")
            said.add(name)
    assert len(said) == len(LANES) - 1
