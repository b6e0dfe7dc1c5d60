"""What the engines read besides a chain of ids: trees, prompts with embeddings; and the states that they keep."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BloomConfig, FalconConfig, GPTNeoConfig

from decoding.engines.cuda_attention import MAX_TREE
from decoding.engines.inputs import Branches, EncodedPrompt
from decoding.records.proposal import path_to
from tests.fake_cuda import recording
from tests.lean_models import CONFIGS, fixed, general, ids, lean, lean_config, random_model

pytestmark = pytest.mark.usefixtures("all_cores")


def one_by_one(hf_model):
    """The lean engine without its layers' compiled call."""
    model = lean(hf_model)
    model._joined = None
    return model


ENGINES = {"lean": lean, "one by one": one_by_one, "fixed": fixed, "general": general}
trees = st.lists(st.integers(0, 10**6), min_size=1, max_size=20).map(
    lambda drawn: [number % (index + 1) - 1 for index, number in enumerate(drawn)]
)


@pytest.fixture(scope="module")
def hf_model():
    return random_model(lean_config(attention_bias=True, head_dim=32, max_position_embeddings=512))


@pytest.fixture(scope="module")
def models(hf_model):
    return {name: make(hf_model) for name, make in ENGINES.items()}


@settings(max_examples=25)
@given(name=st.sampled_from(list(ENGINES)), parents=trees, trunk=st.sampled_from([1, 40, 120, 127]), data=st.data())
def test_each_node_of_a_tree_is_read_as_the_end_of_its_own_path(models, name, parents, trunk, data):
    model = models[name]
    text, tokens = ids(trunk), ids(len(parents), seed=2)
    model.prefill(text)
    cut = data.draw(st.integers(0, len(parents)))  # in two passes, as a draft that grows a tree reads it
    parts = [
        model.extend(tokens[first:end], Branches.below(trunk, parents[:end]).part(first, end))
        for first, end in ((0, cut), (cut, len(parents)))
        if first < end
    ]
    found = torch.cat(parts)
    node = data.draw(st.integers(0, len(parents) - 1))
    path = path_to(parents, node)
    more = ids(3, seed=9)
    model.rewind(trunk, [trunk + one for one in path])
    assert model.length == trunk + len(path)
    after = model.extend(more)

    model.prefill(text)
    plain = model.extend([tokens[one] for one in path])
    expected = model.extend(more)
    if name in ("lean", "one by one"):
        assert torch.equal(found[path], plain) and torch.equal(after, expected)
    torch.testing.assert_close(found[path], plain, atol=1e-4, rtol=0)
    torch.testing.assert_close(after, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["qwen3", "llama-joined"])
@pytest.mark.parametrize("weights", ["float32", "bfloat16", "float16", "int8"])
def test_a_row_of_a_tree_has_the_bits_of_plain_decoding(weights, name):
    model, text = lean(random_model(CONFIGS[name]), weights), ids(126)
    parents, tokens = [-1, 0, 0, 1, 2, -1, 5, 4], ids(8, seed=5)
    model.prefill(text)
    found = model.extend(tokens, Branches.below(126, parents))
    for node in range(8):
        path = path_to(parents, node)
        model.rewind(126)
        assert torch.equal(torch.cat([model.extend([tokens[one]]) for one in path])[-1], found[node])


def test_on_a_gpu_a_tree_that_is_a_chain_is_read_by_the_same_graph(models, monkeypatch):
    """Its attention has another order of sums for trees."""
    model = models["fixed"]
    model.prefill(ids(9))
    plain = model.extend(ids(5, seed=3))
    model.rewind(9)
    monkeypatch.setattr(model._attention, "plan_tree", None)
    assert torch.equal(model.extend(ids(5, seed=3), Branches.below(9, range(-1, 4))), plain)


def test_more_rows_than_one_pass_holds(models):
    parents, tokens = [-1, *range(40), *[0] * 60], ids(101, seed=3)
    for model in models.values():
        model.prefill(ids(9))
        found = model.extend(tokens, Branches.below(9, parents))
        model.rewind(9)
        torch.testing.assert_close(model.extend(tokens[:41]), found[:41], atol=1e-4, rtol=0)
        model.rewind(10)
        torch.testing.assert_close(model.extend(tokens[-1:])[0], found[-1], atol=1e-4, rtol=0)


def test_what_cannot_be_kept_or_read_is_an_error(models):
    for model in models.values():
        model.prefill(ids(9))
        for length, rows in ((9, [8]), (6, [9]), (3, [5, 4])):
            with pytest.raises(ValueError, match="cannot keep the rows"):
                model.rewind(length, rows)
    with pytest.raises(ValueError, match=f"more than {MAX_TREE}"):
        models["fixed"].extend(ids(150), Branches.below(9, [-1] * 150))


def test_trees_are_read_by_graphs_too(hf_model, cuda):
    model, plain = recording(fixed(hf_model)), lean(hf_model)
    for seed in range(3):  # the same graph, other trees
        parents, tokens = [-1, 0, 1, -1, 3] if seed % 2 else [-1, -1, 0, 1, 2], ids(5, seed=seed)
        for one in (model, plain):
            one.prefill(ids(30 + seed))
        branches = Branches.below(30 + seed, parents)
        found, expected = (one.extend(tokens, branches) for one in (model, plain))
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert model.records_graphs and model._runner._graphs and model.note is None


def test_a_model_that_counts_rows_or_is_told_no_positions_reads_no_trees(models):
    shape = dict(vocab_size=128, hidden_size=32, n_layer=1, n_head=2)
    falcon = dict(vocab_size=128, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    neo = dict(vocab_size=128, hidden_size=32, num_heads=2, num_layers=2)
    windowed = GPTNeoConfig(**neo, attention_types=[[["global", "local"], 1]])
    for config in (BloomConfig(**shape), FalconConfig(**falcon, alibi=True), windowed):
        assert not general(random_model(config)).can_branch
    for config in (FalconConfig(**falcon), GPTNeoConfig(**neo, attention_types=[[["global"], 2]])):
        assert general(random_model(config)).can_branch
    assert all(model.can_branch for model in models.values())


@pytest.mark.parametrize("name", ENGINES)
def test_the_states_of_named_layers_are_those_of_transformers(hf_model, models, name):
    model, text, layers = models[name], ids(310), (0, 1, -1)
    with torch.no_grad():
        states = hf_model(torch.tensor([text]), output_hidden_states=True).hidden_states
    model.kept_layers = layers
    model.prefill(text[:270])  # more than one pass
    for rows in (slice(0, 270), slice(270, 276), slice(276, 310)):
        if rows.start:
            model.extend(text[rows])
        for layer, found in zip(layers, model.last_states, strict=True):
            torch.testing.assert_close(found, states[layer][0, rows], atol=1e-4, rtol=0)
    model.kept_layers = ()
    model.prefill(text[:4])
    assert model.last_states == ()


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("at", [0, 3, 250])
def test_embeddings_take_the_place_of_those_of_placeholders(hf_model, models, name, at):
    """The embeddings of other tokens, so that the prompt with these is the expected result."""
    model = models[name]
    shown = ids(10, seed=8)
    before = ids(270)[: min(at, 230)]
    after = ids(20, seed=6)
    embeddings = hf_model.get_input_embeddings().weight.detach()[shown]
    prompt = EncodedPrompt([*before, *[0] * 10, *after], embeddings, len(before), "picture")
    assert prompt.text == before + after and len(prompt) == len(before) + 30
    found = model.prefill(prompt)
    torch.testing.assert_close(found, model.prefill([*before, *shown, *after]), atol=1e-4, rtol=0)


def test_a_prompt_is_cut_outside_of_its_embeddings_only():
    prompt = EncodedPrompt([1, 0, 0, 5, 6], torch.zeros(2, 4), 1, "picture")
    assert prompt.first(4).ids == [1, 0, 0, 5] and prompt.first(4).text == [1, 5]
    assert prompt.extended([7]).ids[-2:] == [6, 7]
    assert prompt.key != EncodedPrompt([1, 0, 0, 5, 6]).key
    with pytest.raises(ValueError, match="in part"):
        prompt.first(2)
