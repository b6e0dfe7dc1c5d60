"""Slim drafts: only weights that are not the target's are stored, and the whole draft is restored from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from decoding.engines.slim import is_slim, materialise, read_head_ids
from decoding.errors import UserError
from training.align.draft_folder import save_slim
from training.align.recipes import Recipe, start_draft

from .tiny_models import tiny_config

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
def test_whole_draft_comes_back(recipe: Recipe, target: Path, tmp_path: Path) -> None:
    draft, projection = start_draft(recipe, load(target))
    with torch.no_grad():
        for parameter in draft.parameters():
            if parameter.requires_grad:
                parameter.copy_((parameter + 0.1 * torch.randn_like(parameter)).bfloat16())
    save_slim(draft, tmp_path / "draft", HEAD, recipe.target_layers, projection)
    assert is_slim(tmp_path / "draft") and not is_slim(target)
    folder = materialise(tmp_path / "draft", target, tmp_path / "cache" / "whole")
    ids = torch.tensor([[1, 7, 9, 30]])
    assert torch.equal(load(folder)(ids).logits, draft(ids).logits)
    assert read_head_ids(folder).tolist() == HEAD.tolist()
    assert (folder / "tokenizer_config.json").is_file()


def test_embeddings_and_shared_layers_are_not_stored(target: Path, tmp_path: Path) -> None:
    recipe = Recipe((0, 1, 3), 4, "an early exit", shared=2)
    save_slim(start_draft(recipe, load(target))[0], tmp_path / "draft", HEAD, recipe.target_layers)
    from safetensors.torch import load_file

    names = list(load_file(tmp_path / "draft" / "own.safetensors"))
    assert "model.norm.weight" in names
    assert not [name for name in names if "embed" in name or "layers.0." in name or "layers.1." in name]


def test_other_targets_draft_is_refused(target: Path, tmp_path: Path) -> None:
    save_slim(start_draft(Recipe((0,), 4, ""), load(target))[0], tmp_path / "draft", HEAD)
    file = tmp_path / "draft" / "config.json"
    file.write_text(file.read_text().replace('"num_hidden_layers": 1', '"num_hidden_layers": 2'))
    with pytest.raises(UserError, match="lacks weights"):
        materialise(tmp_path / "draft", target, tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


@pytest.mark.parametrize("content", ["{}", "[2, 1]", "[1, 1]", "[]", "nothing"])
def test_broken_list_of_ids_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "head_ids.json").write_text(content)
    with pytest.raises(UserError):
        read_head_ids(tmp_path)


def test_no_list_means_all_ids(tmp_path: Path) -> None:
    assert read_head_ids(tmp_path) is None
