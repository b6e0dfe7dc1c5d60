"""A tiny pair whose draft reads the target's hidden states: random weights, on disk, in a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copyfile

import torch
from safetensors.torch import save_file

from decoding.engines.pair import Pair, load_pair
from decoding.engines.slim import FEATURE_FILE
from decoding.records import pairs

from .tiny_pair import make_lively_pair

LAYERS = (1, -1)
WIDTH = 32


def make_feature_pair(models: Path, seed: int = 1) -> Path:
    """A folder ``models/tiny`` with pair.json; its default draft reads the states after LAYERS."""
    folder = models / "tiny"
    target, draft = make_lively_pair(folder)
    for file in ("config.json", "model.safetensors"):  # the projections alone make its guesses wrong
        copyfile(Path(target, file), Path(draft, file))
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    wide = len(LAYERS) * WIDTH
    projections = {
        "fuse.weight": random(WIDTH, wide) * 0.02,
        "own.weight": random(WIDTH, WIDTH) * 0.02,
        "centre": random(wide) * 0.1,
        "scale": 1 + random(wide) * 0.1,
        "own_centre": random(WIDTH) * 0.1,
        "own_scale": 1 + random(WIDTH) * 0.1,
    }
    save_file(projections, folder / "draft" / FEATURE_FILE)
    described = {
        "name": "tiny",
        "target": "target",
        "drafts": {"feature": {"folder": "draft", "kind": pairs.FEATURE, "layers": list(LAYERS)}, "text": "draft"},
        "default_draft": "feature",
    }
    (folder / "pair.json").write_text(json.dumps(described))
    return folder


def load_feature_pair(models: Path, monkeypatch, dtype: str = "float32") -> Pair:
    """The pair in ``models``, made there if necessary."""
    if not (models / "tiny").is_dir():
        make_feature_pair(models)
    monkeypatch.setattr(pairs, "MODELS", models)
    return load_pair("tiny", device="cpu", dtype=dtype)
