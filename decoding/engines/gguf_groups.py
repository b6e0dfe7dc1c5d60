"""The four-bit weights of a GGUF file, read without conversion to bfloat16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .formats.int4 import GROUP, MIDDLE, Groups

_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK_BYTES = 4 + GROUP // 2  # of Q4_1: d and m in float16, then two levels a byte


def read_groups(file: Path, n_heads: int, n_kv_heads: int) -> dict[str, Groups]:
    """The Q4_1 matrices of a Llama's layers in ``file``, by the names of transformers' modules.

    Other formats and other architectures are left out: their weights are rounded from bfloat16.
    """
    from gguf import GGMLQuantizationType, GGUFReader

    reader = GGUFReader(file)
    if reader.fields["general.architecture"].contents() != "llama":
        return {}
    found = {}
    for tensor in reader.tensors:
        kind, number, short, _ = [*tensor.name.split("."), "", "", ""][:4]
        if kind != "blk" or short not in _NAMES or tensor.tensor_type != GGMLQuantizationType.Q4_1:
            continue
        heads = {"attn_q": n_heads, "attn_k": n_kv_heads}.get(short)
        groups = _unpack(tensor.data)
        found[f"model.layers.{number}.{_NAMES[short]}"] = groups if heads is None else _by_halves(groups, heads)
    return found


def _unpack(data: np.ndarray) -> Groups:
    """From blocks [out, bytes]. The low halves of a block's bytes are its first 16 levels, the high ones the rest."""
    blocks = np.ascontiguousarray(data).reshape(data.shape[0], -1, _BLOCK_BYTES)
    d, m = np.moveaxis(blocks[..., :4].view(np.float16).astype(np.float32), -1, 0)
    pairs = blocks[..., 4:]
    levels = np.concatenate([pairs & 15, pairs >> 4], axis=-1).reshape(data.shape[0], -1)
    return Groups(torch.from_numpy(levels), torch.from_numpy(d.copy()), torch.from_numpy(m + MIDDLE * d))


def _by_halves(groups: Groups, n_heads: int) -> Groups:
    """Queries or keys in transformers' order: llama.cpp rotates neighbours, transformers the halves of a head."""

    def turn(rows: torch.Tensor) -> torch.Tensor:
        return rows.view(n_heads, -1, 2, rows.shape[-1]).transpose(1, 2).reshape(rows.shape)

    return Groups(turn(groups.levels), turn(groups.scale), turn(groups.zero))
