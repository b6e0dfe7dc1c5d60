"""The decode loop on toy models: lossless, within its limits, and recorded correctly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.comparison.lane_run import LaneRun
from decoding.comparison.prepare import prepare
from decoding.engines.inputs import EncodedPrompt
from decoding.lookahead.base import DraftState, LaneContext
from decoding.lookahead.lanes import parse_lane
from decoding.loop.acceptance import make_rule
from decoding.loop.clock import DRAFT, POLICY, REST, VERIFY, CpuClock
from decoding.loop.drafting import NgramDraft, prefill
from decoding.loop.speculative import speculative_decode
from decoding.records.request import CompareRequest
from decoding.records.trace import Costs

from .toy import ToyPair

COSTS = Costs(
    target_s=0.005,
    verify_curve=[1 + 0.02 * n for n in range(21)],
    draft_step={"small": 0.1, "ngram": 0.0, "weak": 0.1},
    overhead=0.0,
)
RULES = [("greedy", 0.0), ("coupling", 0.8)]


def prepared_for(pair, lane="static:5", prompt="abcabc", n=40, rule="greedy", temperature=0.0, **more):
    return prepare(
        CompareRequest(prompt, lanes=[lane], max_new_tokens=n, rule=rule, temperature=temperature, **more), pair
    )


def decode(prepared, lane="", costs=COSTS):
    return LaneRun(prepared, parse_lane(lane) if lane else prepared.lanes[0], costs).run()


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
    run = decode(prepared_for(pair, "static:20", n=30), "static:20")
    assert run.output == text[: at + 1] and run.finish == "eos"
    last = run.iterations[-1]
    assert last.stop == "eos" and last.emitted is None and last.drafted == text[: at + 1]
    ignoring = decode(prepared_for(pair, "static:20", n=30, ignore_eos=True), "static:20")
    assert ignoring.output == text


def test_a_stop_string_across_tokens_within_the_draft():
    pair = ToyPair(agree=1.0)
    text = decode(prepared_for(pair, n=30)).output
    string = pair.tokenizer.decode(text[4:7])
    whole = pair.tokenizer.decode(text)
    run = decode(prepared_for(pair, "static:20", n=30, stop=[string]), "static:20")
    assert pair.tokenizer.decode(run.output) == whole[: whole.index(string) + 3]
    last = run.iterations[-1]
    assert run.finish == "stop" and last.emitted is None and last.n_accepted < len(last.drafted)


def test_a_draft_with_a_smaller_context_stops_guessing():
    pair = ToyPair(agree=1.0, draft_length=14)
    prepared = prepared_for(pair, prompt="abcdef", n=30)
    run, plain = decode(prepared, "static:5"), decode(prepared, "autoregressive")
    assert run.output == plain.output
    assert run.iterations[1].stop == "context" and not run.iterations[-1].drafted
    # after 6 + 5 + 1 tokens it can still read two proposals of three: 14 in all
    assert [len(it.drafted) for it in run.iterations[:3]] == [5, 3, 0]


class LapClock:
    """Counts model passes instead of seconds: those since the last lap belong to its phase."""

    def __init__(self, pair: ToyPair) -> None:
        self._models = [pair.target, pair.draft()]

    def begin(self) -> None:
        self._spans, self._seen = [[0, 0] for _ in range(4)], self._passes()

    def lap(self, phase: int) -> None:
        now = self._passes()
        self._spans[phase] = [a + b - c for a, b, c in zip(self._spans[phase], now, self._seen)]
        self._seen = now

    def end(self):
        self.lap(REST)
        return tuple(map(tuple, self._spans))

    def _passes(self) -> list[int]:
        return [len(model.passes) for model in self._models]


@pytest.mark.parametrize("lane", ["static:3", "confidence:0.4"])
def test_each_pass_falls_into_its_phase(lane):
    pair = ToyPair(agree=0.8)
    prepared = prepared_for(pair, lane, n=30)
    policy, source = prepared.policy(prepared.lanes[0]), prepared.source("small", frozenset({"p"}))
    policy.reset(LaneContext("small", COSTS, 30))
    prefill(pair.target, prepared.prompt)
    source.start(prepared.prompt)
    clock = LapClock(pair)
    for it in speculative_decode(pair.target, source, policy, prepared.rule, prepared.prompt, prepared.limits, clock):
        target_only, draft_only = (1, 0), (0, len(it.drafted))
        assert (it.times[VERIFY], it.times[DRAFT]) == (target_only, draft_only)
        assert it.times[POLICY] == it.times[REST] == (0, 0)


def test_cancel_comes_between_iterations():
    prepared = prepared_for(ToyPair(), n=40)
    lane = LaneRun(prepared, parse_lane("static:2"), COSTS)
    seen = []
    for iteration in lane.decode(cancelled=lambda: len(seen) == 3):
        seen.append(iteration)
    assert len(seen) == 3 and lane.finish == "cancelled"


def test_the_clock_stands_still_between_iterations_and_loses_nothing():
    import time

    prepared = prepared_for(ToyPair(), n=12)
    spent = 0.0
    lane = LaneRun(prepared, parse_lane("confidence"), COSTS)
    before = time.perf_counter()
    for _ in lane.decode():
        time.sleep(0.01)
        spent += 0.01
    whole = time.perf_counter() - before
    assert lane.decode_s <= whole - spent
    assert all(all(phase >= 0 for phase in it.times) for it in lane.iterations)


def test_laps_add_up(monkeypatch):
    ticks = iter([10.0, 11.0, 13.0, 16.0, 20.0])
    monkeypatch.setattr("decoding.loop.clock.perf_counter", lambda: next(ticks))
    clock = CpuClock()
    clock.begin()
    clock.lap(2)
    clock.lap(0)
    clock.lap(1)
    assert clock.end() == (2.0, 3.0, 1.0, 4.0)


def test_decisions_stand_beside_what_they_were_about():
    run = decode(prepared_for(ToyPair(agree=0.9), "confidence:0.6", n=40), "confidence:0.6")
    for it in run.iterations:
        if it.stop == "policy":
            assert len(it.decisions) == len(it.drafted) + 1 and it.decisions[-1][0] < 0.6
        assert all(score is None or score >= 0.6 for score, _ in it.decisions[:-1])


@pytest.mark.parametrize("lane", ["static:4", "tree:6"])
def test_the_same_repeat_again_is_the_same(lane):
    for rule, temperature in (*RULES, ("sampling", 0.9)):
        prepared = prepared_for(ToyPair(), lane, rule=rule, temperature=temperature, seed=5)
        one, two = decode(prepared), decode(prepared)
        assert one.output == two.output
        assert [(it.drafted, it.parents) for it in one.iterations] == [
            (it.drafted, it.parents) for it in two.iterations
        ]


def test_coupling_depends_on_the_seed_alone():
    texts = {}
    for seed in (1, 2, 1):
        prepared = prepared_for(ToyPair(), rule="coupling", temperature=1.0, seed=seed, n=30)
        texts.setdefault(seed, set()).add(tuple(decode(prepared, "static:3").output))
    assert len(texts[1]) == 1 and texts[1] != texts[2]


def test_a_padded_vocabulary_never_shows():
    padded, plain = ToyPair(padded=5), ToyPair()
    for rule, temperature in (*RULES, ("sampling", 3.0)):
        texts = [
            decode(prepared_for(pair, rule=rule, temperature=temperature, n=60)).output for pair in (padded, plain)
        ]
        assert texts[0] == texts[1]
        assert max(texts[0]) < 16


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
