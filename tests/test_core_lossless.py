"""A slice of ``python -m decoding lossless`` on a tiny random pair, that it can fail, and its models with a memory."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.bench.lossless import (
    Counts,
    RememberingModel,
    Text,
    check_lossless,
    checked_lanes,
    transformers_reference,
)
from decoding.engines.inputs import FINAL, Branches
from decoding.engines.pair import load_pair
from decoding.records.proposal import path_to

from .commands import command
from .toy import ToyModel, quick_run

PROMPTS = ["def f(x):\n    return", "aaaa bbbb aaaa", "é"]


@pytest.fixture(scope="module")
def pair(lively_pair):
    return load_pair(target=lively_pair[0], draft=lively_pair[1], dtype="float32", device="cpu")


def last(counts) -> Counts:
    return list(counts)[-1]


def test_every_policy_writes_the_text_of_generate(pair):
    reference = transformers_reference(pair.target_folder)
    prompts = [pair.encode_prompt(text) for text in PROMPTS]
    counts = last(check_lossless(pair, reference, prompts, 20, caps=range(1, 17, 7)))
    n_lanes = len(checked_lanes({}))
    expected = {"throughput", "bandit", "adaedl", "oracle:best", "ngram/static:{cap}", "tree:{cap}", "costtree"}
    assert expected <= set(checked_lanes({}))
    assert counts.different == [] and counts.prompts == 3
    assert counts.compared == 3 * (1 + n_lanes * 3) == counts.equal + counts.near_ties
    assert counts.near_ties <= 0.1 * counts.compared


def test_the_slice_means_something(pair):
    """Its text is varied, and its draft is sometimes right and sometimes wrong."""
    trace = quick_run(["static:4"], pair, PROMPTS[0]).lanes[0]
    fates = [token.fate for it in trace.iterations for token in it.drafted]
    assert len(set(trace.output)) > 10 and "accepted" in fates and "rejected" in fates


def test_a_wrong_acceptance_is_counted_with_its_place(pair, monkeypatch):
    reference = transformers_reference(pair.target_folder)
    monkeypatch.setattr("decoding.loop.acceptance.agreeing", lambda drafted, choices: len(drafted))
    counts = last(check_lossless(pair, reference, [pair.encode_prompt(PROMPTS[0])], 24, caps=range(3, 4)))
    assert counts.different
    prompt, rule, cap, at, gap = counts.different[0]
    assert (prompt, cap) == (0, 3) and 0 <= at < 24 and gap >= 1e-4


def test_near_ties_are_counted_apart():
    counts, expected = Counts(), Text([1, 2, 3], [1.0, 5e-5, 1.0])
    counts.add(0, "static", 2, [1, 9, 3], expected)
    counts.add(0, "static", 2, [1, 2, 4], expected)
    counts.add(0, "static", 2, [1, 2, 3], expected)
    counts.add(0, "static", 2, [1, 2], expected)
    assert (counts.equal, counts.near_ties, len(counts.different)) == (1, 1, 2)


def test_the_command_prints_counts_and_goes_on_from_its_file(lively_pair, tmp_path):
    target, draft = lively_pair
    words = ["lossless", "--target", target, "--draft", draft, "--max-new-tokens", "4", "--longest", "1"]
    kept = ["--json", "--out", str(tmp_path / "counts.jsonl")]

    def counts(*more):
        printed = command(*words, *kept, *more).out
        return json.loads(printed[printed.index("{") :])

    first, second = counts("--limit", "1"), counts("--limit", "2")
    assert first["compared"] == 1 + len(checked_lanes({})) and first["different"] == []
    assert (first["prompts"], second["prompts"]) == (1, 2) and second["equal"] == 2 * first["equal"]
    assert counts("--limit", "2") == second and len((tmp_path / "counts.jsonl").read_text().splitlines()) == 3
    assert "different skip" in command(*words, *kept, "--limit", "2", "--skip", "1").err
    assert "Skip fewer" in command(*words, "--limit", "2", "--skip", "2").err


# -- a model with a memory answers as the model itself, and computes a pass once

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
