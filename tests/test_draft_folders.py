"""What lies in a draft's folder: its own weights, ids of its head, counts of the target's text."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from decoding.engines.projections import read_projections
from decoding.engines.slim import SCREEN_FILE, is_slim, materialise, read_head_ids
from decoding.errors import UserError
from decoding.lookahead.ngrams import CELLS, FILE, N_LEVELS, Ngrams, read_ngrams, write_ngrams
from tests.tiny_models import tiny_config
from training.drafts import Recipe, save_slim, start_draft, write_projections

HEAD = torch.tensor([3, 5, 8, 40])


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    config = tiny_config(64, num_hidden_layers=4, max_position_embeddings=64)
    folder = tmp_path_factory.mktemp("target")
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


def load(folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe((0, 3), 4, "two of its layers"),
        Recipe((0, 1, 3), 4, "an early exit", shared=2),
        Recipe((None, None), 4, "narrow", narrower=2),
    ],
)
def test_whole_draft_comes_back_from_no_more_than_its_own_weights(recipe: Recipe, target: Path, tmp_path: Path) -> None:
    draft, projection = start_draft(recipe, load(target))
    with torch.no_grad():
        for parameter in draft.parameters():
            if parameter.requires_grad:
                parameter.copy_((parameter + 0.1 * torch.randn_like(parameter)).bfloat16())
    save_slim(draft, tmp_path / "draft", HEAD, recipe.target_layers, projection)
    (tmp_path / "draft" / SCREEN_FILE).parent.mkdir()
    (tmp_path / "draft" / SCREEN_FILE).write_bytes(b"screen")
    assert is_slim(tmp_path / "draft") and not is_slim(target)
    names, shared = list(load_file(tmp_path / "draft" / "own.safetensors")), range(recipe.shared)
    assert "model.norm.weight" in names and not any("embed" in name for name in names)
    assert not [name for name in names if name.startswith(tuple(f"model.layers.{layer}." for layer in shared))]
    folder = materialise(tmp_path / "draft", target, tmp_path / "cache" / "whole")
    ids = torch.tensor([[1, 7, 9, 30]])
    assert torch.equal(load(folder)(ids).logits, draft(ids).logits)
    assert read_head_ids(folder).tolist() == HEAD.tolist() and (folder / SCREEN_FILE).read_bytes() == b"screen"
    assert (folder / "tokenizer_config.json").is_file()


def test_a_draft_may_share_the_weights_of_another(target: Path, tmp_path: Path) -> None:
    draft, _ = start_draft(Recipe((0, 3), 4, ""), load(target))
    first, second = tmp_path / "first", tmp_path / "second"
    save_slim(draft, first, HEAD)
    write_projections(first, {"fuse.weight": torch.ones(2, 2), "scale": torch.ones(2)})
    save_slim(draft, second, HEAD, trunk=first)
    write_projections(second, {"block.weight": torch.zeros(2, 2, 2)})
    assert not list(second.glob("own*"))
    folder, ids = materialise(second, target, tmp_path / "whole"), torch.tensor([[1, 7, 9, 30]])
    assert torch.equal(load(folder)(ids).logits, load(materialise(first, target, tmp_path / "other"))(ids).logits)
    assert set(read_projections(folder)) == {"fuse.weight", "scale", "block.weight"}
    write_projections(first, {"fuse.weight": torch.zeros(2, 2)})
    with pytest.raises(UserError, match="was made from another first: fetch both"):
        materialise(second, target, tmp_path / "again")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", SCREEN_FILE])
def test_a_damaged_whole_draft_is_made_again(name: str, target: Path, tmp_path: Path) -> None:
    draft, whole = tmp_path / "draft", tmp_path / "whole"
    save_slim(start_draft(Recipe((0,), 4, ""), load(target))[0], draft, HEAD)
    (draft / SCREEN_FILE).parent.mkdir()
    (draft / SCREEN_FILE).write_bytes(b"screen")
    content = (materialise(draft, target, whole) / name).read_bytes()
    (whole / name).write_bytes(content[:-1])
    assert (materialise(draft, target, whole) / name).read_bytes() == content
    made = whole.stat().st_ino
    assert materialise(draft, target, whole).stat().st_ino == made


DAMAGED = "could not be made whole .*: fetch it again"


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("own.safetensors", lambda own: b"\x10", DAMAGED),
        ("draft.json", lambda own: b"[]", DAMAGED),
        ("draft.json", lambda own: b'{"target_layers": [0], "trunk": 5}', DAMAGED),
        ("draft.json", lambda own: b"{}", DAMAGED),
        ("config.json", lambda own: b'{"hidden_size": "wide"}', DAMAGED),
        ("config.json", lambda own: own.replace(b'hidden_layers": 1', b'hidden_layers": 2'), "lacks weights"),
        (
            "config.json",
            lambda own: own.replace(b'"vocab_size": 64', b'"vocab_size": 65'),
            "was not made for this target: choose one of the same pair .size mismatch",
        ),
    ],
)
def test_a_damaged_draft_and_one_of_another_target_are_refused(
    file, content, words, target: Path, tmp_path: Path
) -> None:
    save_slim(start_draft(Recipe((0,), 4, ""), load(target))[0], tmp_path / "draft", HEAD)
    (tmp_path / "draft" / file).write_bytes(content((tmp_path / "draft" / file).read_bytes()))
    with pytest.raises(UserError, match=f"The draft draft {words}"):
        materialise(tmp_path / "draft", target, tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


@pytest.mark.parametrize("content", ["{}", "[2, 1]", "[1, 1]", "[-1, 2]", "[]", "nothing"])
def test_broken_list_of_ids_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "head_ids.json").write_text(content)
    with pytest.raises(UserError, match="head_ids.json (is not a sorted list|cannot be read).*: fetch the draft again"):
        read_head_ids(tmp_path)


# -- counts of n-grams

TEXT = [7, 8, 9] * 5 + [7, 8] + [4]
EMPTY = Ngrams(np.zeros(CELLS // 2, dtype=np.uint8))


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 2**20 - 2), max_size=30), max_size=4))
def test_a_level_is_at_least_the_logarithm_of_the_count(texts):
    ngrams = Ngrams.count(texts)
    for order in (1, 2, 3):
        for tokens, count in Counter(t for text in texts for t in zip(*(text[i:] for i in range(order)))).items():
            levels = ngrams.levels(*[-1] * (3 - order), *tokens)  # the sequence is the guess, with what is before it
            assert levels[{1: 0, 2: 2, 3: 4}[order]] >= min(count.bit_length() - 1, 15)


def test_levels_of_a_guess():
    ngrams = Ngrams.count([TEXT])
    # 7 and 8 six times, 9 five times; (7, 8) six times, (8, 9) five times; 4 once, which is level 0
    assert ngrams.levels(7, 8, 9) == [2, 2, 2, 2, 2]
    assert ngrams.levels(7, 8, 4) == [0, 2, 0, 2, 0]
    assert ngrams.levels(-1, -1, 7)[0] == 2


def test_levels_along_a_text_are_those_of_each_guess():
    ngrams = Ngrams.count([TEXT])
    found = ngrams.levels_along([7], [8, 9, 7], [8, None, 4])
    assert found.tolist() == [ngrams.levels(-1, 7, 8), [0] * N_LEVELS, ngrams.levels(8, 9, 4)]
    assert EMPTY.levels_along([], [], []).shape == (0, N_LEVELS)


def test_few_other_sequences_seem_to_occur():
    rng = np.random.default_rng(0)
    text = rng.integers(0, 300, 60_000).tolist()
    ngrams = Ngrams.count([text])
    others = rng.integers(1000, 49_000, (2000, 3)).tolist()
    occupied = np.mean([ngrams.levels(*tokens)[-1] > 0 for tokens in others])
    assert 0 < occupied < 0.03


def test_drafts_of_a_target_share_counts_unless_one_has_its_own(tmp_path):
    draft, other = tmp_path / "draft", tmp_path / "a-draft"
    for folder in (draft, other):
        folder.mkdir()
    assert read_ngrams(draft) is None
    for folder, ngrams in ((other, Ngrams.count([TEXT])), (draft, Ngrams.count([[1, 2, 3]]))):
        write_ngrams(folder, ngrams)
        np.testing.assert_array_equal(read_ngrams(draft).packed, ngrams.packed)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(UserError, match=FILE):
        read_ngrams(tmp_path)
