"""Writes a trained draft as a slim folder; ``decoding.engines.slim`` describes the format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save
from torch import Tensor
from transformers import LlamaForCausalLM

from decoding.engines.slim import DRAFT_FILE, EMBEDDINGS, FEATURE_FILE, HEAD_FILE, OWN_FILES
from decoding.files import whole_folder, write_whole
from decoding.records.fingerprint import fingerprint

SHARD_SIZE = "9MB"


def save_slim(
    model: LlamaForCausalLM,
    folder: Path,
    head_ids: Tensor,
    target_layers: Sequence[int] = (),
    projection: Tensor | None = None,
    trunk: Path | None = None,
) -> None:
    """Writes the weights that the draft does not share with its target: neither its embeddings nor the
    ``target_layers``. ``projection`` (target's width, draft's width), for a draft narrower than its target. ``trunk``:
    the folder of a draft that has all of these weights. Raises OSError or SafetensorError.
    """
    shared = tuple(f"model.layers.{index}." for index in range(len(target_layers)))
    own = {
        name: weight.detach().bfloat16().cpu().contiguous().clone()
        for name, weight in model.state_dict().items()
        if name not in (EMBEDDINGS, "lm_head.weight") and not (shared and name.startswith(shared))
    }
    if projection is not None:
        own["projection"] = projection.detach().bfloat16().contiguous()
    described: dict[str, object] = {"target_layers": list(target_layers)}
    if trunk:
        own, described["trunk"] = {}, {"folder": trunk.name, "fingerprint": fingerprint(trunk)}
    with whole_folder(folder, is_whole=lambda: False) as new:
        save_torch_state_dict(own, new, filename_pattern="own{suffix}.safetensors", max_shard_size=SHARD_SIZE)
        (new / "own.safetensors.index.json").unlink(missing_ok=True)
        for file in new.glob(OWN_FILES):
            file.chmod(0o644)
        config = model.config.__class__(**{**model.config.to_dict(), "dtype": "bfloat16"})
        config.architectures = ["LlamaForCausalLM"]
        config.save_pretrained(new)
        (new / DRAFT_FILE).write_text(json.dumps(described) + "\n")
        write_head_ids(new, head_ids)


def write_head_ids(folder: Path, head_ids: Tensor) -> None:
    """Writes the ids that a draft may propose, sorted."""
    (folder / HEAD_FILE).write_text(json.dumps(torch.sort(head_ids).values.tolist()) + "\n")


def write_projections(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Writes what a draft that reads the target's states has beside its trunk."""
    stored = {name: w.bfloat16() if name.endswith(".weight") else w for name, w in weights.items()}
    content = save({name: weight.detach().cpu().contiguous() for name, weight in stored.items()})
    write_whole(folder / FEATURE_FILE, content)
