"""A draft of another kind: one class, and what it declares decides what may be said of it."""

from __future__ import annotations

import pytest

from decoding.comparison.compare import finished_run
from decoding.errors import UserError
from decoding.loop import drafting
from decoding.loop.drafting import DraftAbilities, NgramDraft
from decoding.records import model_free
from decoding.records.model_free import ModelFree
from decoding.records.request import CompareRequest
from tests.toy import ToyPair


class Counting(NgramDraft):
    """Guesses the number of tokens that it has proposed in this iteration: not by the text alone."""

    name = "counting"
    abilities = DraftAbilities(certain=True, text_only=False)

    def step(self, text, state):
        state.tokens.append(len(state.tokens) % 16)
        self._rule.propose_certain(state.tokens[-1])
        return True


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
