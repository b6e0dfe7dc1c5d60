"""A comparison on a toy pair: its events, its run file, its sentences, what it notes on its lanes."""

import gc
import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from decoding.analysis.steadiness import how_timed
from decoding.comparison import assemble
from decoding.comparison import compare as compare_module
from decoding.comparison.compare import Comparison, compare
from decoding.comparison.lane_run import LaneRun
from decoding.comparison.prepare import prepare
from decoding.lookahead.base import SL_CAP
from decoding.loop.sampling import softmax
from decoding.records.events import Event, guarded, numbered
from decoding.records.proposal import parents_in, path_to
from decoding.records.request import DEFAULT_LANES, CompareRequest
from decoding.records.run_file import run_from_json, run_to_json

from .fakes import until
from .runs import simulate_lane
from .toy import ToyPair, finished_run, shape_of, unknown

LANES = ["autoregressive", "static:4", "confidence:0.5", "oracle", "ngram/static:2", "weak/heuristic"]


def request(**more) -> CompareRequest:
    return CompareRequest(**{"prompt": "abcabc", "lanes": LANES, "max_new_tokens": 30, "repeats": 2, **more})


def compare_pair(request: CompareRequest, pair: ToyPair, cancel=lambda: False) -> Iterator[Event]:
    """The events that a backend sends."""
    return numbered("run", guarded(compare(request, unknown(pair), cancel, "run")))


@pytest.fixture(scope="module")
def events():
    return list(compare_pair(request(), ToyPair(agree=0.8)))


@pytest.fixture(scope="module")
def run(events):
    return run_from_json(json.dumps(events[-1].data["run"], allow_nan=False))


def test_a_finished_lane_s_seconds_are_those_of_the_run(events, run):
    seconds = {(e.data["lane"], e.data["repeat"]): e.data["decode_s"] for e in events if e.kind == "lane_finished"}
    recorded = {(k, n): times.decode_s for k, lane in enumerate(run.lanes) for n, times in enumerate(lane.repeats)}
    assert seconds.keys() == recorded.keys() and all(s > 0 for s in seconds.values())
    assert seconds == pytest.approx(recorded, abs=1e-6)  # the file keeps nanoseconds


def test_live_iterations_are_those_of_the_run(events, run):
    live = [e.data for e in events if e.kind == "iterations"]
    for lane, trace in enumerate(run.lanes):
        for repeat, read in enumerate(trace.repeats):
            mine = [data for data in live if (data["lane"], data["repeat"]) == (lane, repeat)]
            items = [item for data in mine for item in data["items"]]
            assert [data["first"] for data in mine] == list(np.cumsum([0, *(len(data["items"]) for data in mine)])[:-1])
            for item, it in zip(items, trace.iterations, strict=True):
                assert item["d"] == [[token.id, token.fate] for token in it.drafted]
                assert item["e"] == (it.emitted and [it.emitted.id, it.emitted.fate])
            assert [item["t"][1] for item in items] == pytest.approx(read.verify_s, abs=1e-8)


def test_the_texts_of_live_tokens_come_before_or_with_them(events):
    known = set()
    for event in events:
        if event.kind == "iterations":
            known |= {int(token) for token in event.data["texts"]}
            for item in event.data["items"]:
                assert {token for token, _ in item["d"]} <= known
                assert item["e"] is None or item["e"][0] in known


def test_the_run_is_whole(run):
    assert run_from_json(run_to_json(run)) == run
    assert [trace.lane for trace in run.lanes] == LANES
    assert all(trace.verdict.same is True for trace in run.lanes)
    assert len({tuple(trace.output) for trace in run.lanes}) == 1
    assert all(len(trace.repeats) == 2 for trace in run.lanes)
    assert set(run.chains) == {"small", "ngram", "weak"} == set(run.costs.draft_step) == set(run.pair.drafts)
    assert all(chain.target == run.lanes[0].output for chain in run.chains.values())
    assert len(run.costs.verify_curve) == SL_CAP + 1 and run.costs.verify_curve[0] == 1.0
    assert set(run.costs.decision) == {"autoregressive", "static", "confidence", "oracle", "heuristic"}


@pytest.mark.parametrize("changes", [{}, {"rule": "coupling", "temperature": 0.9, "seed": 11}])
def test_each_fate_is_what_the_first_choices_say(changes):
    run = finished_run(request(**changes), ToyPair(agree=0.7))
    assert all(trace.verdict.same for trace in run.lanes)
    for trace in run.lanes:
        for it in trace.iterations:
            fates = [token.fate for token in it.drafted]
            n = fates.count("accepted")
            assert fates == ["accepted"] * n + ["rejected"] * (n < len(fates)) + ["dropped"] * (len(fates) - n - 1)
            for token in it.drafted:
                assert token.draft_choice == token.id
                assert (token.target_choice == token.id) or token.fate != "accepted"
            if n < len(fates):
                assert it.drafted[n].target_choice == it.emitted.id != it.drafted[n].id
                assert it.emitted.fate == "correction"
            else:
                assert it.emitted.fate == ("bonus" if fates else "plain")
            if trace.policy == "oracle":
                assert "rejected" not in fates


@pytest.mark.parametrize("lanes", [LANES, ["autoregressive", "tree:12", "weak/tree:8"]], ids=["chains", "trees"])
def test_annotations_are_the_models_own_probabilities(lanes):
    """Recomputed from scratch: one pass over exactly the text before each token, dropped ones included."""
    pair = ToyPair(agree=0.6)
    run = finished_run(request(lanes=lanes), pair)
    for trace in run.lanes:
        for it in trace.iterations:
            before = [*run.prompt_ids, *trace.output[: it.start]]
            drafted = [token.id for token in it.drafted]
            for index, token in enumerate(it.drafted):
                path = path_to(parents_in(it.parents, len(drafted)), index)[:-1]
                text = [*before, *(drafted[node] for node in path)]
                _check_place(pair.target, text, token.id, token.p_target, token.target_top)
                if trace.draft in pair.draft_names:
                    _check_place(pair.draft(trace.draft), text, token.id, token.p_draft, token.draft_top)
            last = it.emitted
            _check_place(pair.target, [*before, *drafted[: it.n_accepted]], last.id, last.p_target, last.target_top)


def test_each_model_reads_each_text_once_to_explain_it(monkeypatch):
    read, annotator = [], assemble.Annotator
    real = annotator._read_text
    monkeypatch.setattr(
        annotator, "_read_text", lambda self, model, *rest: read.append(model.name) or real(self, model, *rest)
    )
    finished_run(request(), ToyPair())
    assert sorted(read) == ["small", "target", "weak"]


def _check_place(model, text, token, p, top):
    probabilities = softmax(model.prefill(text).numpy()[-1])
    assert p == pytest.approx(probabilities[token], abs=1e-5)
    assert [one for _, one in top] == pytest.approx(sorted(probabilities, reverse=True)[:5], abs=1e-5)


def test_scores_stand_beside_the_token_they_are_about(run):
    scored = [token for it in run.lane("confidence:0.5").iterations for token in it.drafted if token.score is not None]
    assert scored
    for token in scored:
        assert token.score == pytest.approx(token.p_draft, abs=1e-5) and token.threshold == 0.5


def test_holds_come_from_the_chain(run):
    for trace in run.lanes:
        if trace.draft:
            chain = run.chains[trace.draft]
            assert all(it.holds == chain.holds(it.start) for it in trace.iterations)
    assert all(it.n_drafted == min(it.holds, 29 - it.start) for it in run.lane("oracle").iterations)


def test_under_sampling_there_is_no_verdict_and_no_chain():
    lanes = ["autoregressive", "static:4", "confidence:0.5"]
    run = finished_run(request(rule="sampling", temperature=0.9, lanes=lanes), ToyPair(agree=0.6))
    assert run_from_json(run_to_json(run)) == run
    assert not run.chains and all(trace.verdict.same is None for trace in run.lanes)
    for trace in run.lanes[1:]:
        for it in trace.iterations:
            for token in it.drafted:
                if token.fate == "dropped":
                    assert token.draw is None
                else:
                    assert (token.draw < token.accept_probability) == (token.fate == "accepted")
                    ratio = min(1.0, token.p_target / token.p_draft)
                    assert token.accept_probability == pytest.approx(ratio, abs=1e-3)


def test_contexts_that_are_nearly_full():
    pair = ToyPair(agree=0.6, target_length=40, draft_length=20)
    run = finished_run(request(lanes=["autoregressive", "static:5"], prompt="a" * 15, max_new_tokens=500), pair)
    assert {trace.finish for trace in run.lanes} == {"context"} and all(trace.verdict.same for trace in run.lanes)
    assert run_from_json(run_to_json(run)) == run
    assert simulate_lane(run, "static:5").iterations == shape_of(run.lane("static:5")), "also where its context ends"
    guesses = [token for it in run.lane("static:5").iterations for token in it.drafted]
    assert all(token.p_draft is not None for token in guesses), "also after all that the draft's context holds"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_difference_names_its_place_and_gap(monkeypatch, dtype):
    """A target whose passes over several tokens disagree with those over one: it is broken, and a sentence says so."""
    pair = ToyPair(agree=0.9)
    honest = pair.target.extend

    def broken(ids, branches=None):
        logits = honest(ids, branches)
        if len(ids) > 1 and pair.target.length > 20:
            logits[:, 5] = logits.max() + 1
        return logits

    pair.target.extend = broken
    run = finished_run(request(lanes=["autoregressive", "static:4"]), pair)
    verdict = run.lane("static:4").verdict
    expected, got = run.lanes[0].output, run.lane("static:4").output
    at = verdict.first_difference
    assert verdict.same is False and expected[:at] == got[:at] and expected[at] != got[at]
    assert verdict.gap > 1e-4 and not verdict.near_tie
    assert all(it.holds is None for it in run.lane("static:4").iterations), "the chain follows the other text"
    monkeypatch.setattr(assemble, "NEAR_TIE", 100.0)
    pair.target.info = replace(pair.target.info, dtype=dtype)
    run = finished_run(request(lanes=["autoregressive", "static:4"]), pair)
    assert run.lane("static:4").verdict.near_tie == (dtype == "float32"), "bfloat16 has ties that are none"


def test_a_long_run_keeps_fewer_alternatives(monkeypatch):
    monkeypatch.setattr(assemble, "MANY_TOKENS", 20)
    run = finished_run(request(lanes=["autoregressive"], repeats=1), ToyPair())
    assert {len(token.target_top) for it in run.lanes[0].iterations for token in it.tokens} == {2}


def test_measuring_shows_how_far_it_is_and_ends_there_when_it_is_stopped(events):
    shares = [e.data["fraction"] for e in events if e.kind == "progress" and e.data["stage"] == "measuring"]
    assert len(shares) > 3 and shares == sorted(shares) and shares[0] == 0.0 and shares[-1] <= 1.0


STAGES = [
    ("started", None),
    ("lane_started", None),
    ("iterations", None),
    ("progress", "measuring"),
    ("progress", "chain"),
    ("progress", "warming up"),
    ("lane_finished", None),
]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage[1] or stage[0])
def test_a_stop_is_heeded_wherever_it_comes(stage):
    """Events before the stop stay; there are none after it."""
    seen = []
    for event in compare_pair(request(), ToyPair(), cancel=lambda: stage in seen):
        seen.append((event.kind, event.data.get("stage")))
    assert seen[-1] == ("cancelled", None) and len(seen) - seen.index(stage) <= 3


@pytest.mark.parametrize("stage", ["replay", "explaining", "lane_started"])
def test_a_stop_after_the_first_repeat_keeps_what_was_measured(stage):
    """Whatever comes then is off the clock or refines it: there is a result, with as many repeats as were made."""
    seen = []
    for event in compare_pair(request(repeats=4), ToyPair(), cancel=lambda: stage in seen):
        of_first = event.kind == "lane_started" and event.data["repeat"] < 2
        seen.append(event.data.get("stage") or (event.kind if not of_first else "first"))
    assert event.kind == "finished" and len(seen) - seen.index(stage) <= 4
    kept = run_from_json(json.dumps(event.data["run"]))
    made = 2 if stage == "lane_started" else 1
    assert all(len(trace.repeats) == made and trace.verdict.same for trace in kept.lanes) and kept.settings.repeats == 4
    assert how_timed(kept) == (f"{made} of 4 timings")
    of_all = {"small", "ngram", "weak"}  # read before the second repeat; the oracle's before the first
    assert set(kept.chains) == ({"small"} if stage == "replay" else of_all)


def test_lanes_take_turns_but_the_plain_lane_comes_first_and_waits_for_nothing():
    """Its tokens appear before anything is measured, whatever its place among the lanes."""
    lanes = ["static:4", "autoregressive", "oracle"]
    events = list(compare_pair(request(lanes=lanes, repeats=2), ToyPair()))
    assert [event.kind for event in events[:3]] == ["started", "lane_started", "iterations"]
    for kind in ("lane_started", "lane_finished"):
        turns = [(e.data["repeat"], e.data["lane"]) for e in events if e.kind == kind]
        assert turns == [(0, 1), (0, 0), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_the_plain_lane_is_the_reference(monkeypatch):
    """The target writes its text once for each repeat of each lane, and never additionally as a reference."""
    decoded = []
    real = LaneRun.decode
    monkeypatch.setattr(LaneRun, "decode", lambda self, *rest: decoded.append(self.lane.text) or real(self, *rest))
    finished_run(request(repeats=2), ToyPair())
    assert sorted(decoded) == sorted(LANES * 2)


def test_each_chain_is_recorded_once_and_only_oracles_know_it(monkeypatch):
    recorded, knowing = [], []
    real_chain, real_run = compare_module.chain_of, compare_module.LaneRun

    def chain(prepared, draft, *rest):
        recorded.append((draft, [lane for lane, _ in knowing]))
        return real_chain(prepared, draft, *rest)

    def lane_run(prepared, lane, costs, chain):
        knowing.append((lane.text, chain is not None))
        return real_run(prepared, lane, costs, chain)

    monkeypatch.setattr(compare_module, "chain_of", chain)
    monkeypatch.setattr(compare_module, "LaneRun", lane_run)
    run = finished_run(request(lanes=[*LANES, "weak/static:2"], repeats=2), ToyPair())
    assert [draft for draft, _ in recorded] == ["small", "ngram", "weak"] == list(run.chains)
    assert recorded[0][1] == ["autoregressive"], "before any lane that needs it"
    assert set(knowing) == {(trace.lane, trace.policy == "oracle") for trace in run.lanes}


def test_chains_are_in_the_lanes_order():
    run = finished_run(request(lanes=["static:2", "ngram/oracle"], repeats=1), ToyPair())
    assert list(run.chains) == ["small", "ngram"]


def test_the_replay_comes_with_the_first_repeat_and_is_refined(events, run):
    replays = [event for event in events if event.kind == "replay"]
    assert [(e.data["timings"], e.data["of"]) for e in replays] == [(1, 2), (1, 2), (2, 2)]
    assert set(replays[0].data["run"]["chains"]) == {"small"}  # the oracle's
    for event in replays:
        repeats = event.data["timings"]
        early = run_from_json(json.dumps(event.data["run"]))
        assert early.id == run.id and [trace.lane for trace in early.lanes] == LANES
        assert all(len(trace.repeats) == repeats and trace.verdict.same for trace in early.lanes)
        assert [trace.output for trace in early.lanes] == [trace.output for trace in run.lanes]
        for trace, whole in zip(early.lanes, run.lanes):
            assert trace.repeats == whole.repeats[:repeats]
            for it, last in zip(trace.iterations, whole.iterations, strict=True):
                assert [(t.id, t.fate) for t in it.drafted] == [(t.id, t.fate) for t in last.drafted]
        assert event is replays[0] or early.chains == run.chains  # lanes can be simulated before the second repeat
    before = events[: events.index(replays[0])]
    assert not [e for e in before if e.kind == "lane_started" and e.data["repeat"] > 0]
    assert not [e for e in before if e.kind == "progress" and e.data["stage"] == "explaining"]


def test_a_run_made_to_be_kept_sends_no_replay_of_its_further_repeats():
    events = list(compare_pair(request(lanes=["static:2"], repeats=6), ToyPair()))
    assert [event.data["timings"] for event in events if event.kind == "replay"] == [1, 1]


def test_a_run_that_is_stopped_between_two_chains_has_the_texts_of_the_first_one_s_guesses():
    stop = False
    prepared = prepare(request(lanes=["autoregressive", "static:3", "weak/static:3"]), ToyPair(agree=0.4, vocab=64))
    comparison = Comparison(prepared, unknown(prepared.pair), lambda: stop, "x")
    for kind, data in comparison.events():
        stop = stop or (kind == "progress" and "all that weak would guess" in data["message"])
    chain = comparison.run.chains["small"]
    assert list(comparison.run.chains) == ["small"]
    assert {token for guesses in chain.lists() for token in guesses.choice} - {None} <= set(comparison.run.vocab)


def test_a_closed_generator_leaves_garbage_collection_on():
    events = compare_pair(request(), ToyPair())
    until(events)
    assert not gc.isenabled()
    events.close()
    assert gc.isenabled()


CERTAIN = "ngram has none: use one of these policies with it: static, heuristic, throughput, bandit, oracle"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"lanes": ["huge/static:5"]}, "no draft huge"),
        ({"lanes": ["autoregressive", "disco"]}, "disco is not fitted"),
        ({"lanes": ["ngram/confidence:0.4"]}, CERTAIN),
        ({"lanes": ["ngram/tree:4"]}, CERTAIN),
        ({"lanes": ["oracle"], "rule": "sampling", "temperature": 1.0}, "not defined"),
        ({"prompt": "a" * 5000}, "shorten"),
    ],
)
def test_bad_requests_end_with_a_sentence(more, says):
    events = list(compare_pair(request(**more), ToyPair()))
    assert events[-1].kind == "failed" and says in events[-1].data["message"]


# -- notes


def test_the_default_lanes_run_where_nothing_was_fitted():
    run = finished_run(request(lanes=list(DEFAULT_LANES)), ToyPair())
    lanes = ["autoregressive", "static:5", "confidence:0.4", "oracle"]
    assert [trace.lane for trace in run.lanes] == run.settings.lanes == lanes
    note = "It replaces DISCO, which is not fitted for this pair."
    assert [trace.notes for trace in run.lanes] == [[], [], [note], []]


def test_a_repeat_that_went_otherwise_is_left_out_of_all_lanes_and_noted():
    """Some GPUs are not bitwise reproducible."""
    prepared = prepare(request(lanes=["autoregressive", "static:4", "weak/static:3"], repeats=3), ToyPair())
    comparison = Comparison(prepared, unknown(prepared.pair), lambda: False, "x")
    for kind, data in comparison.events():
        if kind == "lane_finished" and data["lane"] == 2:
            prepared.pair._drafts["small"].seed += {0: 7, 1: -7}.get(data["repeat"], 0)  # another draft in one repeat
    lanes = comparison.run.lanes
    assert [len(trace.repeats) for trace in lanes] == [2, 2, 2]
    note = "A repeat whose iterations differed from the first one's was left out, in all lanes."
    assert [trace.notes for trace in lanes] == [[], [note], []]


def test_what_an_engine_says_of_itself_is_in_the_notes():
    pair = ToyPair()
    pair.target.note = "No graph could be recorded."
    run = finished_run(request(lanes=["autoregressive", "ngram/static:2"], repeats=1), pair)
    assert all(trace.notes == ["No graph could be recorded."] for trace in run.lanes)
