"""Random models of all shapes that the lean engine runs, and the same models on both engines."""

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from decoding.engines.compiled import this_cpu
from decoding.engines.cuda import CudaModel
from decoding.engines.lean import LeanModel
from decoding.engines.loading import describe_model
from decoding.engines.transformers_engine import TransformersModel
from decoding.records.trace import ModelInfo
from tests.tiny_models import tiny_config

# A fault in what is compiled must not look like a CPU for which nothing is: only the CPU decides.
compiled = pytest.mark.skipif(this_cpu() is None, reason="not run: nothing is compiled for this CPU")
VOCAB = 128
LLAMA3_SCALING = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)


def lean_config(family: type[PreTrainedConfig] = LlamaConfig, **changes) -> PreTrainedConfig:
    shape = dict(hidden_size=64, intermediate_size=96, max_position_embeddings=256, tie_word_embeddings=False)
    return tiny_config(VOCAB, family, **(shape | changes))


CONFIGS = {
    "llama": lean_config(num_key_value_heads=4),
    "llama-grouped": lean_config(attention_bias=True, head_dim=32),
    "llama-joined": lean_config(head_dim=32, num_key_value_heads=1),  # all layers in one compiled call
    "llama-one-kv-head": lean_config(num_key_value_heads=1, tie_word_embeddings=True),
    "llama-scaled": lean_config(num_key_value_heads=4, rope_parameters=LLAMA3_SCALING),
    "mistral": lean_config(MistralConfig, sliding_window=None),
    "qwen2": lean_config(Qwen2Config),
    "qwen3-joined": lean_config(Qwen3Config, head_dim=32),
    "qwen3": lean_config(Qwen3Config, head_dim=16),
}


def random_model(config) -> torch.nn.Module:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases away from their neutral values
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def described(hf_model) -> ModelInfo:
    return describe_model(hf_model, "test", "test", "none")


def lean(hf_model, weights: str = "float32", **options) -> LeanModel:
    return LeanModel(hf_model, described(hf_model), weights, **options)


def fixed(hf_model, device: str = "cpu", **options) -> CudaModel:
    """On the CUDA engine's buffers, on the CPU without graphs."""
    return CudaModel(hf_model, described(hf_model), "float32", device, **options)


def general(hf_model) -> TransformersModel:
    return TransformersModel(hf_model, described(hf_model))


def ids(n: int, seed: int = 1) -> list[int]:
    return torch.randint(0, VOCAB, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def on_threads(*numbers: int) -> Iterator[int]:
    """These numbers of threads, one after another."""
    before = torch.get_num_threads()
    try:
        for number in numbers:
            torch.set_num_threads(number)
            yield number
    finally:
        torch.set_num_threads(before)
