"""A new kind of draft is one class; its declared abilities decide which figures it has."""

from dataclasses import replace

import pytest

from decoding.analysis.whatif import Replay
from decoding.comparison.chain import chain_of
from decoding.comparison.lane_run import LaneRun
from decoding.comparison.prepare import KINDS, prepare
from decoding.errors import UserError
from decoding.lookahead.lanes import parse_lane
from decoding.loop import drafting
from decoding.loop.drafting import DraftAbilities, ModelDraft, NgramDraft, start_text
from decoding.records import pairs
from decoding.records.pairs import DraftKind, ModelFree
from decoding.records.request import CompareRequest
from tests.runs import make_costs
from tests.toy import ToyModel, ToyPair, quick_run


class Counting(NgramDraft):
    """Guesses the number of tokens that it has proposed in this iteration, so not by the text alone."""

    name = "counting"
    abilities = DraftAbilities(certain=True, text_only=False)

    def step(self, text, state):
        state.tokens.append(len(state.tokens) % 16)
        self._rule.propose_certain(state.tokens[-1])
        return state.tokens[-1]


def test_it_runs_loses_nothing_and_has_a_chain(monkeypatch):
    monkeypatch.setitem(drafting.MODEL_FREE, "counting", Counting)
    monkeypatch.setitem(pairs.MODEL_FREE, "counting", ModelFree("counting", "counting drafts", "a test's"))
    run = quick_run(["autoregressive", "counting/static:3", "static:3"])
    assert all(trace.verdict.same for trace in run.lanes)
    assert run.pair.drafts["counting"].source == "counting drafts"
    assert set(run.chains) == {"small", "counting"}
    assert [guesses.choice[:3] for guesses in run.chains["counting"].starts[:2]] == [[0, 1, 2], [0, 1, 2]]
    token = run.lanes[1].iterations[0].drafted[1]
    assert token.id == 1 and token.draft_choice == 1


COSTS = make_costs(drafts=("weak", "small"))


class Listener(ModelDraft):
    """A kind that is told the target's states and does not read them."""

    abilities = DraftAbilities(text_only=False)


def feature_pair():
    pair = ToyPair()
    pair.draft_kinds = {"weak": DraftKind("listener", (1, -1))}
    return pair


def test_a_chain_from_every_place_says_what_one_along_the_text_says(monkeypatch):
    """Of a draft that reads the text alone, though it does not declare it."""
    monkeypatch.setitem(KINDS, "listener", Listener)
    request = CompareRequest("abcdabc", lanes=["weak/static:3"], max_new_tokens=40)
    found = [prepare(request, pair) for pair in (ToyPair(), feature_pair())]
    output = LaneRun(found[0], parse_lane("autoregressive"), COSTS).run().output
    alone, anew = (Replay(chain_of(prepared, "weak", output)) for prepared in found)
    assert anew.chain.starts and not anew.chain.tails and not alone.chain.starts
    assert anew.holds == alone.holds and anew.reach == alone.reach
    assert anew.chain.along == alone.chain.along
    for start, reach in enumerate(anew.reach):
        (guesses, _), first = anew.guess(start, 0), [alone.guess(start, index) for index in range(reach)]
        assert guesses.choice == [one.choice[at] for one, at in first]
        assert guesses.p == [one.p[at] for one, at in first]


def test_an_unknown_kind_is_a_sentence():
    with pytest.raises(UserError, match="weak is of the kind listener; this version knows model, feature"):
        prepare(CompareRequest("abc", lanes=["weak/static:3"]), feature_pair())


def test_the_target_keeps_no_states_for_a_draft_that_does_not_ask():
    pair = ToyPair()
    prepared = prepare(CompareRequest("abc", lanes=["static:3"]), pair)
    pair.target.kept_layers = (-1,)  # as another lane left it
    start_text(pair.target, [prepared.source("small")], prepared.prompt)
    assert not pair.target.kept_layers


def test_a_draft_that_hears_states_cannot_depend_on_the_text_alone():
    with pytest.raises(ValueError, match="text alone"):
        DraftAbilities(layers=(-1,))


def test_a_draft_that_lacks_a_token_of_the_text_is_refused():
    """With it the target could never write its own end of text, and even plain decoding's text would be another."""
    pair = ToyPair(vocab=18, eos=17)
    pair._drafts["small"] = ToyModel("small", 16, 0, 0.8)
    request = CompareRequest("abc", lanes=["autoregressive", "static:2"], max_new_tokens=8)
    with pytest.raises(UserError, match="has 16 tokens, and the target needs others for this text .id 17."):
        prepare(request, pair)
    prepare(replace(request, lanes=["autoregressive"]), pair)
