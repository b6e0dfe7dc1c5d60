"""The decode loop on toy models: lossless, within its limits, and recorded correctly."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.comparison.lane_run import LaneRun
from decoding.comparison.prepare import prepare
from decoding.engines.inputs import EncodedPrompt
from decoding.lookahead.base import DraftState
from decoding.loop.acceptance import make_rule
from decoding.loop.clock import DRAFT, POLICY, REST, VERIFY
from decoding.loop.drafting import NgramDraft
from decoding.records.request import CompareRequest

from .runs import make_costs
from .toy import ToyPair

COSTS = make_costs(drafts=("small", "weak", "ngram"))


def prepared_for(pair, lane="static:5", prompt="abcabc", n=40, **more):
    """For that lane alone."""
    return prepare(CompareRequest(prompt, lanes=[lane], max_new_tokens=n, **more), pair)


def decode(prepared, costs=COSTS):
    return LaneRun(prepared, prepared.lanes[0], costs).run()


def test_after_full_acceptance_the_draft_reads_two_tokens():
    pair = ToyPair(agree=1.0)
    run = decode(prepared_for(pair, "static:3", n=12))
    assert [it.n_accepted for it in run.iterations] == [3, 3, 3]
    assert pair.draft().passes == [1, 1, 1, 2, 1, 1, 2, 1, 1]
    assert pair.target.passes == [4, 4, 4]


def test_the_last_iteration_drafts_one_less_than_wanted():
    run = decode(prepared_for(ToyPair(agree=1.0), "static:5", n=8))
    assert [(it.start, len(it.drafted), it.stop) for it in run.iterations] == [(0, 5, "policy"), (6, 1, "limit")]
    assert run.finish == "length" and len(run.output) == 8


def test_end_of_sequence_within_the_draft():
    pair = ToyPair(agree=1.0)
    text = decode(prepared_for(pair, n=30)).output
    eos = next(token for token in text[2:] if token not in text[:2])
    at = text.index(eos)
    pair = ToyPair(agree=1.0, eos=eos)
    run = decode(prepared_for(pair, "static:20", n=30))
    assert run.output == text[: at + 1] and run.finish == "eos"
    last = run.iterations[-1]
    assert last.stop == "eos" and last.emitted is None and last.drafted == text[: at + 1]
    assert decode(prepared_for(pair, "static:20", n=30, ignore_eos=True)).output == text


def test_a_stop_string_across_tokens_within_the_draft():
    pair = ToyPair(agree=1.0)
    text = decode(prepared_for(pair, n=30)).output
    string = pair.tokenizer.decode(text[4:7])
    whole = pair.tokenizer.decode(text)
    run = decode(prepared_for(pair, "static:20", n=30, stop=[string]))
    assert pair.tokenizer.decode(run.output) == whole[: whole.index(string) + 3]
    last = run.iterations[-1]
    assert run.finish == "stop" and last.emitted is None and last.n_accepted < len(last.drafted)


def test_a_draft_with_a_smaller_context_stops_guessing():
    pair = ToyPair(agree=1.0, draft_length=14)
    run, plain = (decode(prepared_for(pair, lane, "abcdef", n=30)) for lane in ("static:5", "autoregressive"))
    assert run.output == plain.output
    assert run.iterations[1].stop == "context" and not run.iterations[-1].drafted
    # after 6 + 5 + 1 tokens it can still read two proposals of three: 14 in all
    assert [len(it.drafted) for it in run.iterations[:3]] == [5, 3, 0]


@pytest.mark.parametrize("lane", ["static:3", "confidence:0.4"])
def test_each_pass_falls_into_its_phase(lane, monkeypatch):
    """By a clock on which a pass of the draft takes a second, one of the target a thousand, and nothing else any."""
    pair = ToyPair(agree=0.8)
    draft, target = pair.draft().passes, pair.target.passes
    monkeypatch.setattr("decoding.loop.clock.perf_counter", lambda: len(draft) + 1000.0 * len(target))
    run = decode(prepared_for(pair, lane, n=30))
    for it in run.iterations:
        assert (it.times[DRAFT], it.times[VERIFY]) == (len(it.drafted), 1000.0)
        assert it.times[POLICY] == it.times[REST] == 0.0
    assert run.decode_s == len(draft) + 1000.0 * len(run.iterations)


def test_cancel_comes_between_iterations():
    prepared, seen = prepared_for(ToyPair(), "static:2"), []
    lane = LaneRun(prepared, prepared.lanes[0], COSTS)
    for iteration in lane.decode(cancelled=lambda: len(seen) == 3):
        seen.append(iteration)
    assert len(seen) == 3 and lane.finish == "cancelled"


def test_the_clock_stands_still_between_iterations_and_loses_nothing():
    prepared = prepared_for(ToyPair(), "confidence", n=12)
    lane = LaneRun(prepared, prepared.lanes[0], COSTS)
    before = time.perf_counter()
    for _ in lane.decode():
        time.sleep(0.01)
    whole = time.perf_counter() - before
    assert lane.decode_s <= whole - 0.01 * len(lane.iterations)
    assert all(phase >= 0 for it in lane.iterations for phase in it.times)


def test_decisions_stand_beside_what_they_were_about():
    run = decode(prepared_for(ToyPair(agree=0.9), "confidence:0.6"))
    for it in run.iterations:
        if it.stop == "policy":
            assert len(it.decisions) == len(it.drafted) + 1 and it.decisions[-1][0] < 0.6
        assert all(score is None or score >= 0.6 for score, _ in it.decisions[:-1])


RULES = [{}, {"temperature": 0.8, "rule": "coupling"}, {"temperature": 3.0, "rule": "sampling"}]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lane", ["static:4", "tree:6"])
def test_the_same_seed_is_the_same_repeat_and_above_temperature_0_another_one_is_not(lane, rule):
    prepared = prepared_for(ToyPair(), lane, seed=5, **rule)
    one, two, other = decode(prepared), decode(prepared), decode(prepared_for(ToyPair(), lane, seed=6, **rule))
    assert one.output == two.output and (one.output == other.output) == (rule == {})
    one, two = ([(it.drafted, it.parents) for it in run.iterations] for run in (one, two))
    assert one == two


@pytest.mark.parametrize("rule", RULES)
def test_a_padded_vocabulary_never_shows(rule):
    padded, plain = (decode(prepared_for(pair, n=60, **rule)).output for pair in (ToyPair(padded=5), ToyPair()))
    assert padded == plain and max(padded) < 16


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 6))
def test_ngram_equals_its_plain_definition(text, n):
    def look_up(seq):
        for size in (3, 2, 1):
            if len(seq) > size - 1:
                suffix = seq[-size:]
                for end in range(len(seq) - 1, size - 1, -1):
                    if seq[end - size : end] == suffix:
                        return seq[end]
        return None

    source, state = NgramDraft(make_rule(CompareRequest("x"), 9, 9)), DraftState()
    source.start(EncodedPrompt(text[:1]))
    expected = list(text)
    source.propose(text, state, n, frozenset())
    for _ in range(n):
        token = look_up(expected)
        if token is None:
            break
        expected.append(token)
    assert state.tokens == expected[len(text) :]
