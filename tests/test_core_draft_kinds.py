"""A new kind of draft is one class; its declared abilities decide which figures it has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from decoding.comparison.compare import finished_run
from decoding.comparison.lane_run import LaneRun
from decoding.comparison.prepare import prepare
from decoding.engines import loading
from decoding.engines.pair import load_pair
from decoding.errors import UserError
from decoding.loop import drafting
from decoding.loop.drafting import DraftAbilities, ModelFreeDraft, NgramDraft
from decoding.records import model_free
from decoding.records.model_free import ModelFree
from decoding.records.request import CompareRequest
from decoding.records.trace import Costs
from tests.tiny_pair import make_tiny_pair
from tests.toy import ToyModel, ToyPair


class Counting(NgramDraft):
    """Guesses the number of tokens that it has proposed in this iteration, so not by the text alone."""

    name = "counting"
    abilities = DraftAbilities(certain=True, text_only=False)

    def step(self, text, state):
        state.tokens.append(len(state.tokens) % 16)
        self._rule.propose_certain(state.tokens[-1])
        return state.tokens[-1]


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setitem(drafting.MODEL_FREE, "counting", Counting)
    monkeypatch.setitem(model_free.MODEL_FREE, "counting", ModelFree("counting", "a counter", "it counts"))


def test_it_runs_loses_nothing_and_is_left_out_of_what_needs_a_chain(counting):
    lanes = ["autoregressive", "counting/static:3", "static:3"]
    run = finished_run(CompareRequest("abc", lanes=lanes, max_new_tokens=40, repeats=1), ToyPair())
    assert all(trace.verdict.same for trace in run.lanes)
    assert run.pair.drafts["counting"].source == "a counter"
    assert set(run.chains) == {"small"}
    token = run.lanes[1].iterations[0].drafted[1]
    assert token.id == 1 and token.draft_choice == 1


@pytest.mark.parametrize(
    "lane, words",
    [("counting/oracle", "depends on where an iteration begins"), ("counting/confidence:0.4", "counting has none")],
)
def test_what_it_cannot_have_is_a_sentence(counting, lane, words):
    with pytest.raises(UserError, match=words):
        finished_run(CompareRequest("abc", lanes=[lane], repeats=1), ToyPair())


class Listening(ModelFreeDraft):
    """Guesses the known text ``says``, every seventh token wrong, and keeps what it receives after each check."""

    name = "listening"
    abilities = DraftAbilities(certain=True, text_only=False, wants_hidden_states=True)

    def start(self, prompt):
        self.heard = []

    def step(self, text, state):
        at = state.position
        state.tokens.append((self.says[at] + (at % 7 == 5)) % 256)
        self._rule.propose_certain(state.tokens[-1])
        return state.tokens[-1]

    def observe(self, n_accepted, hidden):
        self.heard.append((n_accepted, hidden.copy()))

    def forget(self, length):
        pass


@pytest.fixture
def listening(monkeypatch):
    monkeypatch.setitem(drafting.MODEL_FREE, "listening", Listening)
    monkeypatch.setitem(model_free.MODEL_FREE, "listening", ModelFree("listening", "a listener", "it listens"))


def lane_run(pair, lane):
    costs = Costs(target_s=1.0, v=[1.0], c={"listening": 0.1}, o=0.0)
    request = CompareRequest("def f():", lanes=[lane], max_new_tokens=24, ignore_eos=True)
    prepared = prepare(request, pair)
    return prepared.prompt, LaneRun(prepared, prepared.lanes[0], costs)


@pytest.mark.parametrize("lean", [True, False])
def test_it_receives_the_targets_hidden_states_of_what_was_accepted(listening, tmp_path, monkeypatch, lean):
    if not lean:
        monkeypatch.setattr(loading, "is_lean", lambda config: False)
    folder, draft = make_tiny_pair(tmp_path)
    pair = load_pair(target=folder, draft=draft, device="cpu", dtype="float32")
    monkeypatch.setattr(Listening, "says", lane_run(pair, "autoregressive")[1].run().output, raising=False)
    prompt, run = lane_run(pair, "listening/static:3")
    text = [*prompt, *run.run().output]
    assert text[len(prompt) :] == Listening.says

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        states = model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0].numpy()
    heard = run.source.heard
    assert [n for n, _ in heard] == [iteration.n_accepted for iteration in run.iterations]
    assert {n for n, _ in heard} >= {1, 2, 3}, "checks that accepted all and checks that did not"
    for (n_accepted, hidden), iteration in zip(heard, run.iterations, strict=True):
        first = len(prompt) - 1 + iteration.start  # the text's last token before the iteration
        np.testing.assert_allclose(hidden, states[first : first + n_accepted + 1], atol=1e-4)


def test_the_target_keeps_no_states_for_a_draft_that_does_not_ask(listening):
    pair = ToyPair()
    pair.target.kept_layers = (-1,)  # as another lane left it
    _, run = lane_run(pair, "static:3")
    run.run()
    assert not pair.target.kept_layers


def test_a_draft_that_hears_states_cannot_depend_on_the_text_alone():
    with pytest.raises(ValueError, match="text alone"):
        DraftAbilities(wants_hidden_states=True)


def test_a_draft_that_lacks_a_token_of_the_text_is_refused():
    """With it the target could never write its own end of text, and even plain decoding's text would be another."""
    pair = ToyPair(vocab=18, eos=17)
    pair._drafts["small"] = ToyModel("small", 16, 0, 0.8)
    request = CompareRequest("abc", lanes=["autoregressive", "static:2"], max_new_tokens=8)
    with pytest.raises(UserError, match="knows 16 tokens, and the target needs others for this text .id 17."):
        prepare(request, pair)
    prepare(replace(request, lanes=["autoregressive"]), pair)
