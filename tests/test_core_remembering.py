"""A model with a memory answers as the model itself, and computes a pass once."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.bench.remembering import RememberingModel, RememberingTarget
from decoding.engines.inputs import FINAL

from .toy import ToyModel

PROMPT = [1, 2, 3]
steps = st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(0, 4)), max_size=6)


class Historical(ToyModel):
    """A toy whose logits depend on how its cache came about, as rounding makes a real engine's do."""

    def prefill(self, ids):
        self.marks = [0.0] * len(ids)
        return super().prefill(ids)

    def extend(self, ids):
        del self.marks[self.length :]
        mark = (sum(self.marks) + len(ids)) % 7 / 8
        logits = super().extend(ids) * (1 + mark)
        self.marks += [mark] * len(ids)
        return logits


def play(model, texts):
    """The logits of every pass: each text is a list of (tokens read, number of them that are kept)."""
    model.kept_layers = FINAL
    model.prefill(PROMPT)
    found = []
    for text in texts:
        model.rewind(len(PROMPT))
        for ids, kept in text:
            before = model.length
            found.append((model.extend(ids).clone(), model.last_states[0].clone()))
            model.rewind(before + min(kept, len(ids)))
            found[-1] += (model.length,)
    return found


@given(st.lists(steps, min_size=1, max_size=5))
def test_it_answers_as_the_model_itself(texts):
    for mine, its in zip(play(RememberingModel(Historical()), texts), play(Historical(), texts), strict=True):
        assert torch.equal(mine[0], its[0]) and torch.equal(mine[1], its[1]) and mine[2] == its[2]


@given(st.lists(steps, min_size=1, max_size=5))
def test_a_target_keeps_first_choices(texts):
    target = RememberingTarget(Historical(padded=3), 16)
    for mine, its in zip(play(target, texts), play(Historical(padded=3), texts), strict=True):
        assert torch.equal(mine[0].argmax(1), its[0][:, :16].argmax(1)) and mine[2] == its[2]


def test_a_pass_is_computed_once():
    model = ToyModel()
    text = [([1, 2], 1), ([3], 1), ([0, 1], 2)]
    play(RememberingModel(model), [text, text, [*text, ([2], 1)]])
    assert model.passes == [2, 1, 2, 1]


def test_rejected_tokens_make_another_pass():
    model = ToyModel()
    play(RememberingModel(model), [[([1, 2], 1), ([3], 1)], [([1, 0], 1), ([3], 1)]])
    assert model.passes == [2, 1, 2, 1]


def test_a_text_may_begin_anywhere():
    model = RememberingModel(ToyModel())
    model.prefill(PROMPT)
    model.extend([1])
    model.rewind(1)
    assert torch.equal(model.extend([2, 3]), ToyModel.extend(other := _read(ToyModel(), [1]), [2, 3])) and other.length


def _read(model, ids):
    model.prefill(ids)
    return model
