"""A model with a memory answers as the model itself, and computes a pass once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.bench.lossless import RememberingModel
from decoding.engines.inputs import FINAL, Branches
from decoding.records.proposal import path_to

from .toy import ToyModel

PROMPT = [1, 2, 3]
steps = st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(0, 4)), max_size=6)


class Historical(ToyModel):
    """A toy whose logits depend on how its cache came about, as rounding makes a real engine's do."""

    def prefill(self, ids):
        self.marks = [0.0] * len(ids)
        return super().prefill(ids)

    def extend(self, ids, branches=None):
        mark = (sum(self.marks) + len(ids)) % 7 / 8
        logits = super().extend(ids, branches) * (1 + mark)
        self.marks += [mark] * len(ids)
        return logits

    def rewind(self, length, rows=()):
        super().rewind(length, rows)
        self.marks[length:] = [self.marks[row] for row in rows]


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


trees = st.lists(st.tuples(st.lists(st.integers(0, 11), min_size=2, max_size=5), st.integers(0, 5)), max_size=4)


def grow(model, texts):
    """The logits of every pass: each text is a list of trees, read in two passes, of which one path is kept."""
    model.prefill(PROMPT)
    for text in texts:
        model.rewind(len(PROMPT))
        for numbers, node in text:
            parents = [number % (index + 1) - 1 for index, number in enumerate(numbers)]
            ids, top, half = [number % 4 for number in numbers], model.length, len(numbers) // 2
            places = Branches.below(top, parents)
            yield model.extend(ids[:half], places.part(0, half)).clone()
            yield model.extend(ids[half:], places.part(half, len(ids))).clone()
            model.rewind(top, [top + kept for kept in path_to(parents, node % (len(ids) + 1) - 1)])


@given(st.lists(trees, min_size=1, max_size=4))
def test_it_answers_for_trees_too(texts):
    for mine, its in zip(grow(RememberingModel(Historical()), texts), grow(Historical(), texts), strict=True):
        assert torch.equal(mine, its)


@given(st.lists(steps, min_size=1, max_size=5))
def test_a_target_keeps_first_choices(texts):
    target = RememberingModel(Historical(padded=3), 16)
    for mine, its in zip(play(target, texts), play(Historical(padded=3), texts), strict=True):
        assert torch.equal(mine[0].argmax(1), its[0][:, :16].argmax(1)) and mine[2] == its[2]


TEXT = [([1, 2], 1), ([3], 1), ([0, 1], 2)]


@pytest.mark.parametrize("others, further", [([TEXT, [*TEXT, ([2], 1)]], [1]), ([[([1, 0], 1), ([3], 1)]], [2, 1])])
def test_a_pass_is_computed_once_and_rejected_tokens_make_another_one(others, further):
    model = ToyModel()
    play(RememberingModel(model), [TEXT, *others])
    assert model.passes == [2, 1, 2, *further]


def test_a_text_may_begin_anywhere():
    model, plain = RememberingModel(ToyModel()), ToyModel()
    model.prefill(PROMPT)
    model.extend([1])
    model.rewind(1)
    plain.prefill(PROMPT[:1])
    assert torch.equal(model.extend([2, 3]), plain.extend([2, 3]))
