"""Pairs of common sizes with random weights, for measuring speed without a download, at a chosen match rate.

The target's late layers have zero output projections, so that they cost their full time and change nothing; the draft
is the early layers. Draft and target then always agree, and noise on the draft's head lowers the match rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..engines.base import CachedModel
from ..engines.checks import SPARE
from ..engines.cuda import CudaModel
from ..engines.lean import LeanModel
from ..engines.loading import describe_model
from ..engines.pair import Pair
from ..engines.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a target; its draft has the first ``draft_layers`` of its ``layers``."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    layers: int
    draft_layers: int
    vocab: int = 128_256
    context: int = 4096


SHAPES = (
    Shape("1B/0.15B-shaped", 2048, 8192, 32, 8, 16, 2),  # Llama 3.2 1B; the 0.15B exclude its embeddings
    Shape("8B/1B-shaped", 4096, 14336, 32, 8, 32, 4),  # Llama 3.1 8B
)
NOISE = 0.2  # on the draft's head, in standard deviations of its weights


def memory_of(shape: Shape, weights: str) -> int:
    """Bytes that a shape's benchmark needs: target and draft, each as transformers' modules and on our engine."""
    head_dim = shape.hidden // shape.heads
    attention = 2 * shape.hidden * (shape.heads + shape.kv_heads) * head_dim
    layer = attention + 3 * shape.hidden * shape.intermediate
    parameters = (shape.layers + shape.draft_layers) * layer + 4 * shape.vocab * shape.hidden
    cache = 2 * (shape.layers + shape.draft_layers) * shape.kv_heads * head_dim * shape.context
    return int(SPARE * 2 * (parameters + cache) * (4 if weights == "float32" else 2))


def make_models(shape: Shape, device: str, dtype: torch.dtype, noise: float = NOISE) -> tuple[Any, Any]:
    """transformers' modules of target and draft."""
    torch.manual_seed(0)
    target, draft = (_random_llama(shape, layers, device, dtype) for layers in (shape.layers, shape.draft_layers))
    with torch.no_grad():
        for layer in target.model.layers[shape.draft_layers :]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        draft.load_state_dict(
            {name: value for name, value in target.state_dict().items() if name in draft.state_dict()}
        )
        head = draft.lm_head.weight
        head.add_(torch.randn_like(head) * head.std() * noise)
    return target, draft


def _random_llama(shape: Shape, layers: int, device: str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=False,
    )
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def make_pair(shape: Shape, hf_target: Any, hf_draft: Any, device: str, weights: str) -> Pair:
    """The pair on our own engine for ``device``."""
    threads = torch.get_num_threads()

    def engine(name: str, hf_model: Any) -> CachedModel:
        info = describe_model(hf_model, name, "random weights", "random")
        info.dtype, info.device, info.threads, info.engine = weights, device, threads, "lean"
        return LeanModel(hf_model, info, weights) if device == "cpu" else CudaModel(hf_model, info, weights, device)

    draft = engine("early layers", hf_draft)
    return Pair(
        shape.name,
        Tokenizer(IdsAsText()),
        engine(shape.name, hf_target),
        "early-layers",
        ["early-layers"],
        lambda name: draft,
    )


class IdsAsText:
    """Stands in for transformers' tokenizer where ids have no meaning."""

    eos_token_id = bos_token = None

    def encode(self, text: str, **options: Any) -> list[int]:
        return [1]

    def decode(self, ids: list[int], **options: Any) -> str:
        return " ".join(map(str, ids))

    def convert_ids_to_tokens(self, token: int) -> None:
        return None  # no bytes are defined for it


def random_prompts(vocab: int, n: int, length: int = 128) -> list[list[int]]:
    """``n`` prompts of ``length`` ids below ``vocab``, the same at each call."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, vocab, (n, length), generator=generator).tolist()
