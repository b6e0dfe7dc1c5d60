"""A tiny GGUF file with a random Llama in it, for tests that need no package."""

from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize
from tokenizers import pre_tokenizers
from transformers import LlamaForCausalLM, set_seed

from tests.tiny_models import tiny_config

HIDDEN, HEADS, LAYERS = 32, 2, 1
_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path, kind: str = "Q8_0") -> LlamaForCausalLM:
    """Write a random Llama, its matrices in blocks of ``kind``; returns the model before it was quantised."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "<|end|>"]
    shape = dict(hidden_size=HIDDEN, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=HEADS)
    set_seed(3)
    config = tiny_config(len(tokens), **shape, num_key_value_heads=HEADS, max_position_embeddings=128)
    model = LlamaForCausalLM(config).eval()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 1) + [3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(len(tokens) - 1)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_chat_template("{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}")
    for name, weight in _tensors(model):
        if weight.ndim == 1:
            writer.add_tensor(name, weight)
        else:
            form = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, quantize(weight, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _tensors(model: LlamaForCausalLM):
    for name, weight in model.state_dict().items():
        value = weight.numpy().astype(np.float32)
        if name == "model.embed_tokens.weight":
            yield "token_embd.weight", value
        elif name == "model.norm.weight":
            yield "output_norm.weight", value
        elif name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            short = _NAMES[rest.removesuffix(".weight")]
            yield f"blk.{layer}.{short}.weight", _interleaved(value) if short in ("attn_q", "attn_k") else value


def _interleaved(weight: np.ndarray) -> np.ndarray:
    """Rows in llama.cpp's order, which turns neighbouring dimensions where transformers turns halves."""
    half = HIDDEN // HEADS // 2
    return weight.reshape(HEADS, 2, half, -1).swapaxes(1, 2).reshape(weight.shape)
