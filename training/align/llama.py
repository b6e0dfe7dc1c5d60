"""A Llama model as a function, for many texts at once: the caller has the cache and attends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from decoding.engines.instructions import packs as packs_float32
from decoding.engines.instructions import packs_bfloat16

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, q, k, v)`` of tensors (..., heads, head_dim) gives (..., heads * head_dim)."""
Product = Callable[[Tensor], Tensor]


class Layer(NamedTuple):
    """A layer's norms, in float32, and its products: query, key and value joined; out; gate and up joined; down."""

    norm1: Tensor
    norm2: Tensor
    qkv: Product
    out: Product
    gate_up: Product
    down: Product


class Llama:
    """Products in ``dtype``, those of the head in ``head_dtype``, the sum of the layers in float32.

    ``length``: the longest text. ``rows``: of most inputs, for which the weights are packed on a CPU.
    """

    def __init__(
        self, model: LlamaForCausalLM, length: int, dtype: torch.dtype, head_dtype: torch.dtype, rows: int
    ) -> None:
        config = model.config
        self.device, self.eps, self.dtype, self.rows = model.device, config.rms_norm_eps, dtype, rows
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
        self.head_dim = config.hidden_size // self.heads
        places = torch.arange(length, device=self.device)[None]
        cos, sin = model.model.rotary_emb(torch.zeros(1, device=self.device), places)
        self.cos, self.sin = cos[0].to(dtype), sin[0].to(dtype)
        weight = model.lm_head.weight.detach()
        self.embedding, self.head_dtype = weight.to(dtype), head_dtype
        self.head = packed(weight.to(head_dtype), rows)
        self.norm = model.model.norm.weight.detach().float()
        self.layers = [self._layer(layer) for layer in model.model.layers]

    def _layer(self, layer: torch.nn.Module) -> Layer:
        assert isinstance(layer, LlamaDecoderLayer)
        attention, mlp = layer.self_attn, layer.mlp
        norm1, norm2 = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        matrices = qkv, attention.o_proj.weight, gate_up, mlp.down_proj.weight
        return Layer(
            norm1.detach().float(),
            norm2.detach().float(),
            *(packed(matrix.detach().to(self.dtype).contiguous(), self.rows) for matrix in matrices),
        )

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.eps).to(self.dtype)

    @torch.no_grad()
    def run(
        self, ids: Tensor, positions: Tensor, attend: Attention, keep: Sequence[int] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """The states (..., width), float32, that the head reads after ids (...) at positions (...), and the hidden
        states after each of the ``keep`` layers.
        """
        cos, sin = self.cos[positions][..., None, :], self.sin[positions][..., None, :]
        x, kept, turning = F.embedding(ids, self.embedding).float(), [], self.heads + self.kv_heads
        for index, layer in enumerate(self.layers):
            mixed = layer.qkv(self._normed(x, layer.norm1)).unflatten(-1, (-1, self.head_dim))
            left, right = mixed[..., :turning, :].chunk(2, -1)
            turned = mixed[..., :turning, :] * cos + torch.cat((-right, left), -1) * sin
            q, k, v = turned[..., : self.heads, :], turned[..., self.heads :, :], mixed[..., turning:, :]
            x = x + layer.out(attend(index, q, k, v))
            gate, up = layer.gate_up(self._normed(x, layer.norm2)).chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
            if index + 1 in keep:
                kept.append(x)
        return F.rms_norm(x, self.norm.shape, self.norm, self.eps), kept

    def read(self, ids: Tensor, keep: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Of whole texts (texts, length): the states that the head reads; and the hidden states of the token before
        each after each of the ``keep`` layers (texts, length, layers, width), bfloat16, zeros before the first token.
        """
        positions = torch.arange(ids.shape[1], device=self.device).expand_as(ids)
        last, kept = self.run(ids, positions, _attend_within, keep)
        states = torch.stack(kept, 2).bfloat16()
        return last, torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """(n, vocabulary), in the head's dtype, of states (n, width)."""
        return self.head(states.to(self.head_dtype))


def _attend_within(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of texts (texts, length, heads, head_dim)."""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(-2)


def packed(weight: Tensor, rows: int) -> Product:
    """A function that multiplies (rows, inputs) by ``weight`` (outputs, inputs), packed once for ``rows`` rows."""
    packs = packs_bfloat16 if weight.dtype == torch.bfloat16 else packs_float32
    if weight.device.type != "cpu" or not rows or not packs():
        return lambda x: F.linear(x, weight)
    laid_out = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, laid_out, None, "none", [], "")
