"""Aligning a draft to a chat model: texts, batches, the run, and what is installed."""

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM
from typer.testing import CliRunner

from decoding.engines.projections import read_projections
from decoding.engines.slim import SCREEN_FILE, own_weights, read_head_ids, trunk_of
from decoding.errors import UserError
from decoding.lookahead.ngrams import read_ngrams
from training import __main__ as commands
from training import distil, drafts, feature_drafts, install, loop
from training import teacher as teachers
from training.data import Epochs, Texts, all_texts, frequent_ids, read_texts, shard_files
from training.drafts import Recipe, in_four_bits, layer_matrices, rounded_layers, write_head_ids
from training.teacher import ChatModel, Teacher, turns_of
from training.texts import Text, good_prompt, split_of, suite_of, write_suite

from .tiny_chat import make_tiny_chat

ANSWER = 16
"""Maximum number of tokens of an answer."""
RATE = {"rate": 0.5, "low": 0.4, "high": 0.6}
ROW = {"answers": 1, "answer_tokens": 9, "match": RATE, "accepted": RATE, "tokens_per_pass": 1.5, "layers": 3}
ROWS = {
    "texts": {"texts": 1, "tokens": 9},
    "drafts": dict.fromkeys(
        ("three-layers", "one-layer"),
        ROW | {"width": 64, "head_rows": 28, "outside": 0.0, "steps": 1, "minutes": 0.1, "tokens": 9},
    ),
}
"""The facts of a pair whose drafts of text were trained elsewhere."""


@pytest.fixture(scope="module")
def chat(tmp_path_factory) -> ChatModel:
    return make_tiny_chat(tmp_path_factory.mktemp("chat"))


def write_texts(chat: ChatModel, folder: Path, tokens: int, device: torch.device | None = None) -> int:
    """Short texts and, without a device, the states after both layers; returns the number of their tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teachers, "STATE_LAYERS", (1, 2))
        patch.setattr(teachers, "LONGEST_PROMPT", 40)
        patch.setattr(teachers, "LONGEST_ANSWER", ANSWER)
        patch.setattr(teachers, "SHARES", (0.4, 0.1, 0.1, 0.4))
        return teachers.write_enough(chat, folder, tokens, device, rows=256)


@pytest.fixture(scope="module")
def written(chat, tmp_path_factory) -> Path:
    """A folder with a few hundred texts, in several files."""
    write_texts(chat, folder := tmp_path_factory.mktemp("texts"), 9000)
    return folder


def test_texts_hold_what_the_target_computes_of_each_alone(chat, written):
    """Padding and the other texts of a pass change nothing beyond rounding."""
    model, before = chat.load(torch.float32), turns_of(chat.tokenizer()).before
    for text in list(all_texts(written))[:6]:
        ids = torch.tensor([[*before, *text.ids.tolist()]])
        with torch.no_grad():
            logp = model(ids).logits[0, len(before) - 1 : -1].log_softmax(-1)
            layers = model.model(ids, output_hidden_states=True).hidden_states
        kept = torch.from_numpy(text.top_logp.astype(np.float32))
        at = logp.gather(-1, torch.from_numpy(text.top_ids.astype(np.int64)))
        assert float((kept - at).abs().median()) < 0.02
        states = torch.from_numpy(np.array(text.states)).view(torch.bfloat16).float()
        read = [states[:, 0], model.model.norm(states[:, 1])]  # transformers gives the last layer's after the norm
        for ours, theirs in zip(read, layers[1:], strict=True):
            torch.testing.assert_close(ours, theirs[0, len(before) - 1 : -1], atol=0.05, rtol=0.05)
        if text.temperature == 0:
            taken = logp[text.answer :].gather(-1, torch.from_numpy(text.ids[text.answer :].astype(np.int64))[:, None])
            assert float((logp[text.answer :].amax(-1) - taken[:, 0]).max()) < 0.1  # the second of two near ties


def good_texts(chat: ChatModel, folder: Path) -> list[Text]:
    """The texts in ``folder``, after a look at each: it is a good prompt, of its own, and its answer."""
    turns, found = turns_of(chat.tokenizer()), list(all_texts(folder))
    assert len({text.prompt.casefold() for text in found}) == len(found)
    for text in found:
        assert good_prompt(text.prompt)
        assert text.ids[text.answer - len(turns.between) : text.answer].tolist() == turns.between
        answer = text.ids[text.answer :].tolist()
        assert len(answer) == ANSWER or answer[-1] == turns.end
        assert turns.end not in answer[:-1]
    return found


def test_every_text_is_a_good_prompt_and_its_answer(chat, written):
    assert good_texts(chat, written) and len(shard_files(written)) > 1


def test_writing_goes_on_where_it_stopped(chat, written, tmp_path):
    for file in shard_files(written)[:1]:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    before = sum(len(text.ids) for text in all_texts(tmp_path))
    assert write_texts(chat, tmp_path, before) == before
    after = write_texts(chat, tmp_path, before + 500)
    assert after == sum(len(text.ids) for text in all_texts(tmp_path)) >= before + 500
    prompts = [text.prompt for text in all_texts(tmp_path)]
    assert len(set(prompts)) == len(prompts)


def test_prompts_that_are_none_are_refused():
    assert good_prompt("Can you name three rivers in France?")
    for bad in ("Sure, here you are my friend.", "Rivers?", "Как дела мой друг сегодня", "What is <|im_end|> for you?"):
        assert not good_prompt(bad)


def test_a_prompts_split_depends_on_its_words_alone():
    assert split_of("Name three rivers!") == split_of("  name THREE rivers ")
    splits = [split_of(f"prompt number {number}") for number in range(4000)]
    assert 0.81 < splits.count("train") / 4000 < 0.89
    for split in ("test", "validation", "policies"):
        assert 0.035 < splits.count(split) / 4000 < 0.065


def test_the_suite_holds_prompts_that_drafts_never_see(written):
    prompts = suite_of(all_texts(written))
    trained = {text.prompt for text in read_texts(written, "train")}
    assert prompts and not trained & {prompt.prompt for prompt in prompts}
    assert {prompt.split for prompt in prompts} <= {"train", "validation", "test"}


def test_without_texts_the_suite_that_is_there_stays(tmp_path):
    file = tmp_path / "chat.jsonl"
    file.write_text("{}")
    with pytest.raises(UserError, match="training align texts"):
        write_suite([], file)
    assert file.read_text() == "{}"


def test_batches_hold_each_text_once_and_ask_for_its_next_token(written, chat):
    found = read_texts(written, "train")
    before = turns_of(chat.tokenizer()).before
    head = frequent_ids(found, 20)
    data = Texts(found, before)
    batches = data.batches(400, seed=1)
    assert sorted(index for batch in batches for index in batch) == list(range(len(found)))
    assert max(len(batch) for batch in batches) > 1
    batch = data.batch(batches[0])
    following = batch.ids.flatten()[batch.places + 1]
    expected = np.concatenate([found[index].ids for index in batches[0]]).astype(np.int64)
    assert following.tolist() == expected.tolist()
    known = batch.known(head)
    assert float(known.weight.sum()) == pytest.approx(1)
    assert torch.equal(known.inside, torch.isin(batch.top_ids, head))
    assert torch.equal(head[known.places[known.inside]], batch.top_ids[known.inside])
    assert not known.places[~known.inside].any()


def test_batches_are_numbered_over_epochs_of_equal_length(written, chat):
    texts = Texts(read_texts(written, "train"), turns_of(chat.tokenizer()).before)
    epochs = Epochs(texts, 512)
    count = len(texts.batches(512, 0))
    first = [epochs.batch(number).ids for number in range(count)]
    second = epochs.batch(count).ids
    assert torch.equal(second, texts.batch(texts.batches(512, 1)[0]).ids)
    assert torch.equal(epochs.batch(count - 1).ids, first[-1])


def test_a_folder_without_texts_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match="align texts"):
        Texts(read_texts(tmp_path, "train"), [0])


@pytest.fixture
def tiny_places(chat, written, tmp_path, monkeypatch):
    """All steps read and write below a temporary folder; the ladder is one default and one other draft."""
    monkeypatch.setattr(loop, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.setattr(loop, "LOGS", tmp_path / "logs")
    pair = tmp_path / "models" / "pair"
    places = {"PAIR": pair, "TEXTS": written, "DRAFTS": tmp_path / "drafts", "model": lambda: chat}
    for module, name in product((commands, teachers, distil, install, feature_drafts), places):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, places[name])
    monkeypatch.setattr(commands, "SUITE_FILE", tmp_path / "chat.jsonl")
    tiny = {
        "three-layers": Recipe((0, None, drafts.LAST), 28, "three", grown_from="two-layers"),
        "two-layers": Recipe((0, None), 28, "two"),
        "one-layer": Recipe((0,), 20, "one"),
    }
    for name, recipe in tiny.items():
        monkeypatch.setitem(drafts.RECIPES, name, recipe)
    monkeypatch.setattr(drafts, "LADDER", ("one-layer",))
    for module, plan in ((distil, "NEW"), (distil, "GROWN"), (distil, "FINISHED")):
        monkeypatch.setattr(module, plan, replace(getattr(module, plan), batch_tokens=1024))
    return pair


@pytest.fixture
def start(tiny_places, chat, written):
    """Starts a run of one draft; one of the same recipe goes on where the last one was killed."""
    teacher = Teacher(chat, written)
    return lambda recipe: distil.Run("", {recipe.note: distil.TextLearner(recipe, teacher)}, distil.NEW)


def only(run: distil.Run) -> LlamaForCausalLM:
    """The draft of a run of one."""
    (learner,) = run.learners.values()
    return learner.draft.trunk


def test_a_run_learns_and_goes_on_where_it_was_killed(start):
    run = start(Recipe((0, None), 28, "two"))
    before = run.loss_of(0).item()
    run.train(1e6, tokens=20_000)
    assert run.loss_of(0).item() < 0.7 * before
    again = start(Recipe((0, None), 28, "two"))
    again.train(1e6, tokens=20_000)
    assert again.timed.steps == run.timed.steps
    assert torch.equal(only(again).model.norm.weight, only(run).model.norm.weight)


def test_rounded_layers_learn_what_they_are_rounded_from(start):
    run = start(Recipe((0,), 28, "one"))
    matrices = layer_matrices(only(run))
    before = [weight.detach().clone() for weight in matrices]
    exact = run.loss_of(0).item()
    with rounded_layers(only(run)):
        loss = run.loss_of(0)
        assert all(torch.equal(weight, in_four_bits(old)) for weight, old in zip(matrices, before))
    assert loss.item() != exact and all(torch.equal(weight, old) for weight, old in zip(matrices, before))
    loss.backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in matrices)
    with pytest.raises(ZeroDivisionError), rounded_layers(only(run)):
        raise ZeroDivisionError
    assert all(torch.equal(weight, old) for weight, old in zip(matrices, before))


def test_a_grown_draft_begins_with_the_guesses_of_the_one_it_grows_from(start, chat, written):
    with pytest.raises(UserError, match="align draft two-layers"):
        distil.distil("three-layers", tokens=1)
    distil.distil("two-layers", tokens=3000)
    trained, teacher = distil.DRAFTS / "two-layers", Teacher(chat, written)
    shallow = distil.TextLearner(drafts.RECIPES["two-layers"], teacher, trained).draft.trunk
    run = start(drafts.RECIPES["three-layers"])
    deep = only(run)
    assert len(deep.model.layers) == 3
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.equal(deep(ids).logits, shallow(ids).logits)
    run.train(1e6, tokens=3000)
    assert deep.model.layers[-1].mlp.down_proj.weight.abs().sum() > 0


def test_a_shipped_draft_learns_further_with_its_head(tiny_places, chat, written):
    with pytest.raises(UserError, match="no shipped draft 'two-layers'"):
        distil.distil("two-layers", tokens=3000, further=True)
    distil.distil("two-layers", tokens=3000)
    shipped = tiny_places / "drafts" / "two-layers"
    shutil.copytree(distil.DRAFTS / "two-layers", shipped)
    head = torch.arange(5, 30)
    write_head_ids(shipped, head)
    distil.distil("two-layers", tokens=6000, further=True)
    assert read_head_ids(distil.DRAFTS / "two-layers").tolist() == head.tolist()
    old, new = own_weights(shipped), own_weights(distil.DRAFTS / "two-layers")
    assert any(not torch.equal(old[name], new[name]) for name in old)
    assert distil.facts_of("two-layers")["tokens"] >= 9000


def test_a_narrower_draft_goes_on_with_the_projection_that_made_its_embeddings(chat, written, tmp_path):
    """Another machine's eigenvectors may point the other way."""
    recipe, teacher = Recipe((None,), 28, "narrow", narrower=2), Teacher(chat, written)
    draft = distil.TextLearner(recipe, teacher)
    embeddings = draft.draft.trunk.model.embed_tokens.weight
    draft.projection = -draft.projection
    draft.save(tmp_path / "narrow")
    again = distil.TextLearner(recipe, teacher, tmp_path / "narrow")
    assert torch.equal(again.draft.trunk.model.embed_tokens.weight, -embeddings)


def test_embeddings_and_shared_layers_stay_the_targets(start):
    run = start(Recipe((0, None), 28, "exit", shared=1))
    run.train(1e6, tokens=3000)
    target = run.teacher.target.state_dict()
    for name, weight in only(run).state_dict().items():
        same = name in target and torch.equal(weight, target[name])
        assert same == (name.startswith(("model.embed", "model.layers.0.", "lm_head")))


def align(*words: str) -> None:
    result = CliRunner().invoke(commands.app, ["align", *words])
    if result.exception:
        raise result.exception


def test_all_steps_end_in_a_pair_with_its_card(tiny_places):
    align("all", "--tokens", "5000", "--minutes", "0.02")
    described = json.loads((tiny_places / "pair.json").read_text())
    assert described["chat"] and described["default_draft"] == "three-layers"
    assert list(described["drafts"]) == ["three-layers", "two-layers", "one-layer"]
    facts = json.loads((tiny_places / "alignment.json").read_text())
    assert 0 <= facts["drafts"]["three-layers"]["match"]["rate"] <= 1
    assert facts["drafts"]["three-layers"]["tokens"] > facts["drafts"]["two-layers"]["tokens"] > 0
    assert facts["drafts"]["one-layer"]["head_rows"] == 20
    counts = read_ngrams(tiny_places / "drafts" / "three-layers")
    assert counts is not None and counts.packed.any()
    card = (tiny_places / "README.md").read_text()
    assert f"{facts['drafts']['one-layer']['match']['rate']:.3f}" in card


def reading_recipes(monkeypatch, *plan) -> list[str]:
    """The names of drafts that read the states of a model of two layers, and of one that reads the text alone."""
    monkeypatch.setattr(teachers, "STATE_LAYERS", (1, 2))
    own = {"feature": ((1, 2), 0), "heads": ((2,), 3), feature_drafts.TEXT_ONLY: ((), 0)}
    for name, (layers, heads) in own.items():
        recipe = feature_drafts.FeatureRecipe(layers, "one-layer", *plan, heads=heads)
        monkeypatch.setitem(feature_drafts.RECIPES, name, recipe)
    return list(own)


def test_a_draft_learns_to_read_states_and_is_installed_beside_its_control(tiny_places, monkeypatch):
    own = reading_recipes(monkeypatch, plan := replace(feature_drafts.YOUNG, batch_tokens=1024))
    in_one_pass = feature_drafts.FeatureRecipe((1, 2), "feature", plan, block=4)
    monkeypatch.setitem(feature_drafts.RECIPES, "block", in_one_pass)
    distil.distil("one-layer", tokens=3000)
    for folder in (tiny_places / "drafts" / "one-layer", tiny_places / "drafts" / "captions"):
        shutil.copytree(distil.DRAFTS / "one-layer", folder)
    shutil.rmtree(distil.DRAFTS / "one-layer")
    pictures = {"folder": "drafts/captions", "purpose": "pictures"}
    install.write_json(tiny_places / "pair.json", {"drafts": {"one-layer": "drafts/one-layer", "captions": pictures}})
    install.write_json(tiny_places / "alignment.json", ROWS)
    numbers, batch = [], Epochs.batch
    monkeypatch.setattr(Epochs, "batch", lambda epochs, number: numbers.append(number) or batch(epochs, number))
    for name, tokens in (("feature", 3000), *((name, 6000) for name in own)):
        align("feature", name, "--tokens", str(tokens))
        if name == "feature":
            assert numbers == list(range(-(-tokens // 1024))), "a longer run goes on where the shorter one ended"
    assert read_projections(distil.DRAFTS / "feature")["fuse.weight"].abs().sum() > 0
    assert read_projections(distil.DRAFTS / "heads")["heads.weight"].abs().sum() > 0
    assert not (distil.DRAFTS / "one-layer" / "feature.safetensors").exists()
    align("install")
    feature = {"folder": "drafts/feature", "kind": "feature", "layers": [1, 2]}
    heads = {"folder": "drafts/heads", "kind": "heads", "layers": [2]}
    described = {"one-layer": "drafts/one-layer", "captions": pictures, "feature": feature, "heads": heads}
    assert json.loads((tiny_places / "pair.json").read_text())["drafts"] == described
    facts = json.loads((tiny_places / "alignment.json").read_text())
    fitted = [tiny_places / "drafts" / "feature" / name for name in ("policies/disco.json", SCREEN_FILE)]
    for file in fitted:
        file.parent.mkdir()
        file.write_bytes(b"to these weights")
    align("install")
    assert all(file.read_bytes() == b"to these weights" for file in fitted)
    assert json.loads((tiny_places / "alignment.json").read_text()) == facts  # nothing is counted twice
    assert facts["drafts"]["three-layers"] == ROWS["drafts"]["three-layers"]
    assert facts["drafts"]["one-layer"]["tokens"] >= 6000 + 9 and facts["drafts"]["one-layer"]["head_rows"] == 20
    assert facts["reading"]["feature"]["tokens"] >= 6000
    align("feature", "block", "--tokens", "3000")  # from the feature draft as it is installed, whose weights it shares
    assert read_projections(distil.DRAFTS / "block").keys() == {"block.weight", "block.bias"}
    align("install")
    described["block"] = {"folder": "drafts/block", "kind": "block", "layers": [1, 2]}
    assert json.loads((tiny_places / "pair.json").read_text())["drafts"] == described
    assert trunk_of(tiny_places / "drafts" / "block") == tiny_places / "drafts" / "feature"
    card = (tiny_places / "README.md").read_text()
    assert "| feature | one-layer | layers 1, 2 |" in card and "reads the text alone: " in card
    assert "With a screened head on a CPU: feature. " in card


def test_each_draft_of_text_that_learned_beside_those_of_states_is_measured_again(tiny_places, monkeypatch):
    plan, names = replace(feature_drafts.YOUNG, batch_tokens=1024), ("one-layer", "two-layers")
    monkeypatch.setattr(teachers, "STATE_LAYERS", (1, 2))
    (tiny_places / "drafts").mkdir(parents=True)
    for name in names:
        monkeypatch.setitem(feature_drafts.RECIPES, name, feature_drafts.FeatureRecipe((), name, plan))
        distil.distil(name, tokens=3000)
        (distil.DRAFTS / name).rename(tiny_places / "drafts" / name)
    rows = ROWS["drafts"] | {"two-layers": ROWS["drafts"]["one-layer"]}
    install.write_json(tiny_places / "pair.json", {"drafts": {name: f"drafts/{name}" for name in names}})
    install.write_json(tiny_places / "alignment.json", ROWS | {"drafts": rows})
    for name in names:
        align("feature", name, "--tokens", "3000")
    align("install")
    drafts = json.loads((tiny_places / "alignment.json").read_text())["drafts"]
    assert drafts["three-layers"] == rows["three-layers"]
    assert [drafts[name]["head_rows"] for name in names] == [20, 28]
    assert all(drafts[name]["tokens"] >= 3000 + 9 for name in names)


def test_install_without_a_default_draft_says_what_to_do(tiny_places):
    with pytest.raises(UserError, match="align draft"):
        align("install")
