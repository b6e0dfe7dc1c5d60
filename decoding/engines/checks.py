"""Checks of a model before it is loaded or downloaded: no code of its own, matching tokens, enough memory."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from ..errors import UserError
from ..records.machine import container_memory
from .formats import WeightFormat
from .tokenizer import Tokenizer

_PROBE = 'def f(x):\n    return  x ** 2  # naïve — 漢字 🙂\n\nThe quick brown fox, 1,234.5 times; it\'s "done"!\t'
_SIZES = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "intermediate_size",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "n_layer",
    "n_head",
    "n_embd",
    "n_positions",
)
_WEIGHT_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\.safetensors")
_MODEL_FILE = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
INDEX_FILE = "model.safetensors.index.json"
MAX_SIZE = 10**8
SPARE = 1.1  # for activations, buffers and the runtime


def check_config(config: Any, name: str) -> None:
    """Raises UserError for a configuration that is not a model's, for models with their own code, and for those that
    do not read a text from left to right.
    """
    if not isinstance(config, dict) or "model_type" not in config:
        raise UserError(f"{name} is not a transformers model: its config.json has no model_type.")
    if "auto_map" in config:
        raise UserError(f"{name} needs code from its own repository, which is never run here: choose another model.")
    if config.get("is_encoder_decoder"):
        raise UserError(f"{name} is an encoder-decoder: choose a decoder-only model.")
    if str(config["model_type"]) in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.get("is_decoder"):
        raise UserError(f"{name} reads a text in both directions and continues none: choose a decoder-only model.")
    text = config.get("text_config") or {}
    if not isinstance(text, dict):
        raise UserError(f"{name} contains a broken model: its config.json has text_config = {str(text)[:40]}.")
    sizes = {**config, **text}
    for key in _SIZES:
        size = sizes.get(key)
        least = 0 if key == "num_hidden_layers" else 1  # the trunk of parallel heads has none
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not least <= size <= MAX_SIZE):
            raise UserError(f"{name} contains a broken model: its config.json has {key} = {str(size)[:40]}.")


def weight_files(names: Iterable[str]) -> list[str]:
    """Of a folder's files those that transformers loads the weights from: model.safetensors, or its parts. A repository
    may have the same weights in another form too (consolidated.safetensors). Where nothing has such a name, all count.
    """
    found = [name for name in names if name.endswith(".safetensors") and "/" not in name]
    parts = [name for name in found if _MODEL_FILE.fullmatch(name)]
    return ["model.safetensors"] if "model.safetensors" in parts else parts or found


def check_index(folder: Path) -> None:
    """Raises UserError for an index that points at anything but safetensors files in its folder.

    transformers would follow such a list anywhere and read any file type that it finds there, including pickles.
    """
    path = folder / INDEX_FILE
    if not path.exists():
        return
    try:
        files = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise UserError(f"{folder.name} contains a broken model: its {INDEX_FILE} is not a list of weights.") from error
    for file in files:
        if not isinstance(file, str) or not _WEIGHT_FILE.fullmatch(file):
            sentence = "and only safetensors files in the same folder are read: choose another model."
            raise UserError(f"{folder.name} keeps weights in {str(file)[:60]!r}, {sentence}")
        if not (folder / file).is_file():
            raise UserError(f"{folder.name} is incomplete: {file}, which its {INDEX_FILE} names, is missing.")


def check_same_tokenizer(target: Tokenizer, draft: Tokenizer, target_name: str, draft_name: str) -> None:
    """Raises UserError for two models whose tokens differ.

    Equal means: the same text gives the same ids (except special tokens), and every shared id is the same token. A
    padded vocabulary or renamed special tokens do not matter.
    """
    first, second = target.vocabulary(), draft.vocabulary()
    differing = [id for id in first.keys() & second.keys() if first[id] != second[id]]
    if differing or target.encode_part(_PROBE) != draft.encode_part(_PROBE):
        what = f"{len(differing):,} tokens differ" if differing else "they cut the same text differently"
        raise UserError(
            f"{target_name} and {draft_name} have different tokenizers ({what}): a draft must use its "
            "target's tokens. Choose a draft of the same family."
        )


def stored_dtype(config: dict[str, Any]) -> str:
    """The dtype of a checkpoint's weights, as its configuration says: "float32", "bfloat16" or "float16"."""
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    return stored if stored in ("float32", "bfloat16", "float16") else "float32"


def estimate_memory(
    config: dict[str, Any], stored_bytes: int, weights: WeightFormat, device: str, max_length: int
) -> int:
    """Peak bytes of memory of a model whose safetensors have ``stored_bytes``, run with ``weights``.

    The lean engine on a CPU makes its own form of the weights, so that both forms exist for a while.
    """
    parameters = stored_bytes / getattr(torch, stored_dtype(config)).itemsize
    size = int(parameters * max(weights.layer_bytes, weights.head_bytes))
    cache = _cache_bytes(config, weights.compute.itemsize, max_length)
    return int(SPARE * ((stored_bytes + size if device == "cpu" else size) + cache))


def _cache_bytes(config: dict[str, Any], item: int, max_length: int) -> int:
    config = config.get("text_config") or config
    layers = config.get("num_hidden_layers") or config.get("n_layer") or 0
    heads = config.get("num_attention_heads") or config.get("n_head") or 1
    hidden = config.get("hidden_size") or config.get("n_embd") or 0
    kv_heads = config.get("num_key_value_heads") or (1 if config.get("multi_query") else heads)
    head_dim = config.get("head_dim") or hidden // heads
    length = min(max_length, config.get("max_position_embeddings") or config.get("n_positions") or max_length)
    return 2 * layers * kv_heads * head_dim * length * item


def free_memory(device: str) -> int | None:
    """Bytes available on ``device`` now; None if unknown.

    Released memory counts as free: models in reference cycles, and the blocks that torch caches.
    """
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # no Linux
        return None
    limit, used = container_memory()
    return int(min(available, max(0, limit - used)))


def check_memory(name: str, need: int, free: int | None, device: str) -> None:
    """Raises UserError for a model that will not fit."""
    if free is not None and need > free:
        where = "of memory" if device == "cpu" else "of memory on the GPU"
        raise UserError(
            f"{name} needs about {need / 1e9:.1f} GB {where}; {free / 1e9:.1f} GB are free. Choose a "
            "smaller pair, or a machine with more memory."
        )
