"""The drafts for a chat model: their shapes, their initial weights, what they share with the target, the slim folders
that they are written to (``decoding.engines.slim`` describes the format), and the number formats in which they are
trained and measured: products in bfloat16, matrices in four bits (decoding/engines/formats/int4.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from decoding.engines.choosing import multiplies_bfloat16
from decoding.engines.formats.int4 import round_to_groups
from decoding.engines.slim import DRAFT_FILE, EMBEDDINGS, FEATURE_FILE, HEAD_FILE, OWN_FILES
from decoding.files import whole_folder, write_whole
from decoding.records.weights import fingerprint


@dataclass(frozen=True, slots=True)
class Recipe:
    """A draft with one layer for each entry of ``starts``: the number of the target's layer whose weights it starts
    from, or None for random weights.

    The first ``shared`` layers are the target's and are not trained. ``narrower``: divisor of the width, the heads and
    the MLP. ``head``: the number of ids that the draft may propose. ``grown_from``: the draft, one layer shallower and
    with the same head, from which its first layers and its norm start.
    """

    starts: tuple[int | None, ...]
    head: int
    note: str
    shared: int = 0
    narrower: int = 1
    grown_from: str = ""

    @property
    def target_layers(self) -> tuple[int, ...]:
        """Numbers of the target's layers that the draft uses unchanged as its first layers."""
        return tuple(start for start in self.starts[: self.shared] if start is not None)


LAST = -1
"""The target's last layer."""
RECIPES: dict[str, Recipe] = {
    "three-layers": Recipe((0, None, LAST), 8192, "three layers as wide as the target's", grown_from="two-layers"),
    "two-layers": Recipe((0, None), 8192, "two layers as wide as the target's"),
    "one-layer": Recipe((0,), 8192, "one layer as wide as the target's"),
    "deep-narrow": Recipe(
        (None,) * 4,
        16384,
        "as many parameters outside the embeddings as one-layer, in four layers half as wide",
        narrower=2,
    ),
    "early-exit": Recipe((0, 1, 2, 3, 4, None), 8192, "the target's first five layers and one of its own", shared=5),
}
DEFAULT = "three-layers"
"""The default draft of a new pair; that of an installed pair is what its pair.json says."""
LADDER = tuple(name for name in RECIPES if name not in (DEFAULT, RECIPES[DEFAULT].grown_from))


def start_draft(
    recipe: Recipe, target: LlamaForCausalLM, projection: Tensor | None = None
) -> tuple[LlamaForCausalLM, Tensor | None]:
    """A float32 draft that starts from the target, with frozen embeddings; and, if it is narrower than the target, the
    projection (target's width, draft's width) that made its embeddings: the one given, or a new one.
    """
    torch.manual_seed(1)
    draft = LlamaForCausalLM(narrowed(target.config, recipe))
    embeddings = target.model.embed_tokens.weight.detach().float()
    if recipe.narrower > 1 and projection is None:
        projection = _principal(embeddings, recipe.narrower)
    with torch.no_grad():
        own = embeddings if projection is None else embeddings @ projection.float()
        draft.model.embed_tokens.weight.copy_(own.bfloat16())
        for layer, start in zip(draft.model.layers, recipe.starts):
            if start is not None:
                layer.load_state_dict(target.model.layers[start].state_dict())
        if recipe.narrower == 1:
            draft.model.norm.load_state_dict(target.model.norm.state_dict())
    draft.tie_weights()
    draft.model.embed_tokens.weight.requires_grad_(False)
    for layer in draft.model.layers[: recipe.shared]:
        layer.requires_grad_(False)
    return draft, projection


def grow(draft: LlamaForCausalLM, weights: Mapping[str, Tensor]) -> None:
    """Loads the ``weights`` of a draft that is one layer shallower, and makes the last layer the identity.

    The deeper draft then starts with the shallower one's guesses (Net2Net, Chen et al. 2016).
    """
    draft.load_state_dict(weights, strict=False)
    last = draft.model.layers[-1]
    with torch.no_grad():
        last.self_attn.o_proj.weight.zero_()
        last.mlp.down_proj.weight.zero_()


def _principal(embeddings: Tensor, narrower: int) -> Tensor:
    """The directions (width, width / narrower) in which the embeddings vary most, rounded to bfloat16."""
    width = embeddings.shape[1] // narrower
    return torch.linalg.eigh(embeddings.T @ embeddings).eigenvectors[:, -width:].bfloat16().float()


def narrowed(config: LlamaConfig, recipe: Recipe) -> LlamaConfig:
    """The target's configuration with the recipe's layers and width."""
    values = config.to_dict() | {
        "num_hidden_layers": len(recipe.starts),
        "hidden_size": config.hidden_size // recipe.narrower,
        "intermediate_size": config.intermediate_size // recipe.narrower,
        "head_dim": config.hidden_size // config.num_attention_heads // recipe.narrower,
        "dtype": "float32",
        "architectures": ["LlamaForCausalLM"],
    }
    for key in ("layer_types", "_name_or_path", "_model_name_or_path", "transformers_version"):
        values.pop(key, None)
    return LlamaConfig(**values)


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


def half(device: torch.device) -> torch.dtype:
    """bfloat16, or float32 where the CPU would imitate it, which is slower."""
    return torch.bfloat16 if device.type != "cpu" or multiplies_bfloat16() else torch.float32


def in_halves(device: torch.device) -> torch.autocast:
    """Products of float32 tensors in the format ``half`` inside the block."""
    return torch.autocast(device.type, torch.bfloat16, enabled=half(device) == torch.bfloat16)


def layer_matrices(draft: nn.Module) -> list[Tensor]:
    """The matrices that an engine rounds: all of the layers'."""
    named = draft.named_modules()
    return [module.weight for name, module in named if isinstance(module, nn.Linear) and not name.endswith("lm_head")]


def in_four_bits(weight: Tensor) -> Tensor:
    """``weight`` [out, in] as the engine holds it; float32."""
    return round_to_groups(weight).rounded().dequantised()


@contextmanager
def rounded_layers(draft: nn.Module, due: bool = True) -> Iterator[None]:
    """Rounds the layers' matrices inside the block if it is ``due``, and restores them after it.

    A forward pass in it and a backward pass after it train the matrices for their rounded values: the gradient passes
    the rounding unchanged (straight-through, Jacob et al. 2018, "Quantization and Training of Neural Networks").
    """
    if not due:
        yield
        return
    matrices = layer_matrices(draft)
    kept = [weight.data for weight in matrices]
    for weight in matrices:
        weight.data = in_four_bits(weight.data)
    try:
        yield
    finally:
        for weight, data in zip(matrices, kept):
            weight.data = data
