"""The weights of a Llama's layers as the decoders of many texts need them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer


class LayerWeights(NamedTuple):
    """Linear weights are (outputs, inputs); query, key and value are joined, gate and up too. All in bf16."""

    norm1: Tensor
    qkv: Tensor
    out: Tensor
    norm2: Tensor
    gate_up: Tensor
    down: Tensor


def layer_weights(model: LlamaForCausalLM) -> list[LayerWeights]:
    """The weights of each layer."""
    return [_weights_of(layer) for layer in model.model.layers]


def _weights_of(layer: nn.Module) -> LayerWeights:
    assert isinstance(layer, LlamaDecoderLayer)
    attention, mlp = layer.self_attn, layer.mlp
    weights = LayerWeights(
        norm1=layer.input_layernorm.weight,
        qkv=torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
        out=attention.o_proj.weight,
        norm2=layer.post_attention_layernorm.weight,
        gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        down=mlp.down_proj.weight,
    )
    return LayerWeights(*(weight.detach().bfloat16() for weight in weights))
