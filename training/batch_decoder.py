"""Batched decoding of texts of equal length: a minimal bf16 Llama forward over a preallocated cache.

It exists for throughput: transformers' ``generate`` concatenates every layer's cache at every token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from training.layer_weights import layer_weights


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x (batch, heads, n, 64) by tables (n, 64)."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def attend(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of q (batch, heads, n, 64) over keys and values (batch, kv_heads, length, 64).

    A single query uses plain matrix products: torch's fused attention took four times as long.
    """
    if q.shape[2] > 1:
        return F.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)
    groups = q.view(q.shape[0], keys.shape[1], -1, q.shape[3])
    scores = (keys @ groups.transpose(-1, -2)).float() * q.shape[3] ** -0.5
    weights = scores.softmax(dim=2).to(values.dtype).transpose(-1, -2)
    return (weights @ values).view_as(q)


class BatchDecoder:
    """The target in bf16 with keys and values for ``batch`` texts of up to ``length`` tokens."""

    def __init__(self, model: LlamaForCausalLM, batch: int, length: int) -> None:
        config, self.device = model.config, model.device
        self.eps, self.heads = config.rms_norm_eps, config.num_attention_heads
        self.kv_heads = config.num_key_value_heads or self.heads
        self.head_dim = config.head_dim or config.hidden_size // self.heads
        cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(length)[None])
        self.cos, self.sin = cos[0].bfloat16().to(self.device), sin[0].bfloat16().to(self.device)
        self.embedding = model.lm_head.weight.detach().bfloat16()
        self.norm = model.model.norm.weight.detach().bfloat16()
        self.layers = layer_weights(model)
        shape = (batch, self.kv_heads, length, self.head_dim)
        self.keys = [torch.zeros(shape, dtype=torch.bfloat16, device=self.device) for _ in self.layers]
        self.values = [torch.zeros(shape, dtype=torch.bfloat16, device=self.device) for _ in self.layers]

    @torch.inference_mode()
    def extend(self, ids: Tensor, start: int) -> Tensor:
        """Normed last hidden states of ids (batch, n) at positions ``start``...; n > 1 only at start 0.

        Returns (batch, n, hidden); ``logits`` turns them into logits.
        """
        rows, n = ids.shape
        cos, sin = self.cos[start : start + n], self.sin[start : start + n]
        x = F.embedding(ids, self.embedding)
        for index, (norm1, qkv, out, norm2, gate_up, down) in enumerate(self.layers):
            mixed = F.linear(F.rms_norm(x, norm1.shape, norm1, self.eps), qkv)
            q, k, v = (
                mixed.view(rows, n, -1, self.head_dim)
                .transpose(1, 2)
                .split([self.heads, self.kv_heads, self.kv_heads], dim=1)
            )
            keys, values = self.keys[index][:rows, :, : start + n], self.values[index][:rows, :, : start + n]
            keys[:, :, start:] = _rotate(k, cos, sin)
            values[:, :, start:] = v
            attended = attend(_rotate(q, cos, sin), keys, values)
            x = x + F.linear(attended.transpose(1, 2).reshape(rows, n, -1), out)
            gate, up = F.linear(F.rms_norm(x, norm2.shape, norm2, self.eps), gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, down)
        return F.rms_norm(x, self.norm.shape, self.norm, self.eps)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., vocabulary) in bf16 of hidden (..., hidden)."""
        return F.linear(hidden, self.embedding)
