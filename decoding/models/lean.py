"""The lean engine: Llama-shaped models with fused weights and a cache of our own.

One code for Llama, Mistral without window, Qwen2, Qwen3 and SmolLM: pre-norm blocks of rotary attention (biases and
query/key norms where the family has them) and a gated SiLU MLP. The weights are taken from a loaded transformers model,
the rotary tables from its own rotary module, so that every scaling is right.

Batch-invariance (design decision 5): on the packed bfloat16 path a row's bits do not depend on how many rows are read in
the same call. The linears have that property by themselves. Attention has it when the number of keys is padded to a
multiple of 64 and at least four query rows are given, so fewer rows bring copies of themselves along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.nn.functional as F

from ..trace import ModelInfo
from .base import DEFAULT_MAX_LENGTH, check_prompt, check_rewind, check_room
from .linears import DenseLinear, Int8Linear, Linear, PackedLinear

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
KEY_BLOCK = 64  # keys are read in whole blocks of this many
MIN_ROWS = 4  # of a query: with fewer, torch takes another matrix product, which rounds otherwise
ROW_CHUNK = 32  # rows of one checking pass: torch cuts queries into blocks of this many
PREFILL_CHUNK = 256  # rows of one pass over a prompt, whose bits need not fit any other pass


@dataclass(slots=True)
class Block:
    """Weights of one layer. ``qkv`` is [(Hq + 2 Hkv) d, hidden]; norms are float32, times the root of their size."""

    attention_norm: torch.Tensor
    qkv: Linear
    out: Linear
    mlp_norm: torch.Tensor
    gate: Linear
    up: Linear
    down: Linear
    qk_norm: torch.Tensor | None  # [Hq + Hkv, d], where the family norms queries and keys


def is_lean(config: Any) -> bool:
    """Can the lean engine run a model of this transformers config?"""
    return config.model_type in FAMILIES and config.hidden_act == "silu" and not has_window(config)


def has_window(config: Any) -> bool:
    """Does some layer see only a sliding window of the text?"""
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        return any(kind != "full_attention" for kind in layer_types)
    return getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)


class LeanModel:
    """A Llama-shaped :class:`~decoding.models.base.CachedModel` (float32, packed bfloat16 or int8 weights).

    ``weights``: "float32", "bfloat16" or "int8". On a CUDA device every linear is dense.
    """

    def __init__(self, hf_model: Any, info: ModelInfo, weights: str, device: str = "cpu",
                 max_length: int = DEFAULT_MAX_LENGTH) -> None:
        config = hf_model.config
        self.info = info
        self.hidden_size, self.vocab_size = config.hidden_size, config.vocab_size
        self.n_heads, self.n_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.n_groups = self.n_heads // self.n_kv_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.device = torch.device(device)
        self.dtype = torch.float32 if weights == "float32" else torch.bfloat16
        self.max_length = min(max_length, config.max_position_embeddings)
        self.length = 0
        self.keep_hidden = False
        self.last_hidden: torch.Tensor | None = None
        self._epsilon = torch.tensor((self.hidden_size * config.rms_norm_eps) ** 0.5, device=self.device)
        self._head_epsilon = torch.tensor((self.head_dim * config.rms_norm_eps) ** 0.5, device=self.device)
        with torch.inference_mode():
            self._take_weights(hf_model, _linear_form(weights, self.device))
            self._make_tables(hf_model)
            self._make_cache()

    # -- construction

    def _take_weights(self, hf_model: Any, form: Callable[..., Linear]) -> None:
        def cast(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().to(self.device, self.dtype)

        def norm(module: Any) -> torch.Tensor:
            weight = cast(module.weight).float()
            return weight * weight.shape[-1] ** 0.5

        def linear(*modules: Any) -> Linear:
            weight = torch.cat([cast(module.weight) for module in modules])
            biases = [module.bias for module in modules]
            bias = None if biases[0] is None else torch.cat([cast(one) for one in biases])
            return form(weight, bias)

        self.embedding = cast(hf_model.model.embed_tokens.weight)
        self.final_norm = norm(hf_model.model.norm)
        self.head = linear(hf_model.lm_head)
        self.blocks = []
        for layer in hf_model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            self.blocks.append(Block(
                attention_norm=norm(layer.input_layernorm),
                qkv=linear(attention.q_proj, attention.k_proj, attention.v_proj),
                out=linear(attention.o_proj),
                mlp_norm=norm(layer.post_attention_layernorm),
                gate=linear(mlp.gate_proj),
                up=linear(mlp.up_proj),
                down=linear(mlp.down_proj),
                qk_norm=self._query_key_norm(attention, norm),
            ))

    def _query_key_norm(self, attention: Any, norm: Callable) -> torch.Tensor | None:
        if not hasattr(attention, "q_norm"):
            return None
        query, key = norm(attention.q_norm), norm(attention.k_norm)
        return torch.cat([query.expand(self.n_heads, -1), key.expand(self.n_kv_heads, -1)])

    def _make_tables(self, hf_model: Any) -> None:
        """Rotary tables [max_length, 1, d] and the causal band that every pass' mask is a view of.

        Rotation is x * cos + swap(x) * sin with the halves of x swapped: the sign of the swap sits in ``sin``.
        """
        rotary = hf_model.model.rotary_emb
        positions = torch.arange(self.max_length, device=rotary.inv_freq.device)[None]
        cos, sin = rotary(torch.zeros(1, device=positions.device, dtype=torch.float32), positions)
        sin = torch.cat([-sin[..., : self.head_dim // 2], sin[..., self.head_dim // 2 :]], dim=-1)
        self.cos = cos[0, :, None].to(self.device, self.dtype).contiguous()
        self.sin = sin[0, :, None].to(self.device, self.dtype).contiguous()
        self._capacity = -(-self.max_length // KEY_BLOCK) * KEY_BLOCK
        rows = KEY_BLOCK + PREFILL_CHUNK
        band = torch.zeros(rows, self._capacity + rows, dtype=self.dtype, device=self.device)
        late = torch.arange(rows, device=self.device) > torch.arange(rows, device=self.device)[:, None]
        band[:, self._capacity :].masked_fill_(late, float("-inf"))
        self._band = band

    def _make_cache(self) -> None:
        """Keys and values of all layers, [layers, 2, Hkv, capacity, d]; zeros, for a mask cannot hide a NaN."""
        shape = (len(self.blocks), 2, self.n_kv_heads, self._capacity, self.head_dim)
        self._cache = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self._layer_cache = list(self._cache.unbind(0))

    # -- use

    @torch.inference_mode()
    def prefill(self, ids: list[int]) -> torch.Tensor:
        """Logits after the last of ``ids``, [1, vocab]; the cache holds ``ids`` and nothing else."""
        check_prompt(ids, self.max_length)
        self.length = 0
        for first in range(0, len(ids), PREFILL_CHUNK):
            hidden = self._forward(ids[first : first + PREFILL_CHUNK])
        return self._logits(hidden[-1:])

    @torch.inference_mode()
    def extend(self, ids: list[int]) -> torch.Tensor:
        """Logits after each of ``ids``, [n, vocab]; appends them to the cache."""
        check_room(self.length, len(ids), self.max_length)
        if len(ids) <= ROW_CHUNK:
            return self._logits(self._forward(ids))
        chunks = [self._forward(ids[first : first + ROW_CHUNK]) for first in range(0, len(ids), ROW_CHUNK)]
        return self._logits(torch.cat(chunks))

    def rewind(self, length: int) -> None:
        """Forget what came after the first ``length`` tokens; it is masked, then overwritten."""
        check_rewind(length, self.length)
        self.length = length

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.last_hidden = hidden.float() if self.keep_hidden else None
        return self.head(hidden).float()

    def _forward(self, ids: list[int]) -> torch.Tensor:
        """Final-norm output of ``ids`` (at most PREFILL_CHUNK of them), [n, hidden]; appends them to the cache."""
        n, start = len(ids), self.length
        end = start + n
        mask = self._mask(start, n)
        cos, sin = self.cos[start:end], self.sin[start:end]
        x = F.embedding(torch.tensor(ids, device=self.device), self.embedding)
        for block, cache in zip(self.blocks, self._layer_cache):
            attended = self._attend(block, cache, self._norm(x, block.attention_norm), cos, sin, mask, start)
            x = block.out.plus(attended, x)
            h = self._norm(x, block.mlp_norm)
            x = block.down.plus(block.up.times(h, block.gate.silu(h)), x)
        self.length = end
        return self._norm(x, self.final_norm)

    def _mask(self, start: int, n: int) -> torch.Tensor:
        """Additive mask [rows, keys], keys padded to whole blocks; row i sees the first start + i + 1 keys.

        A view into the band. Heads that share keys lie beneath one another as further rows (group-major), and the
        whole is repeated up to MIN_ROWS rows.
        """
        n_keys = -(-(start + n) // KEY_BLOCK) * KEY_BLOCK
        row, column = start % KEY_BLOCK, self._capacity - start // KEY_BLOCK * KEY_BLOCK
        mask = self._band[row : row + n, column : column + n_keys]
        copies = self.n_groups * -(-MIN_ROWS // (self.n_groups * n))
        return mask if copies == 1 else torch.cat([mask] * copies)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: torch.Tensor | None = None) -> torch.Tensor:
        """x / rms(x) * weight over the last axis, in float32 inside; ``weight`` comes multiplied by sqrt(size).

        The same as F.rms_norm, which takes a dozen operations on the CPU: |x| / sqrt(size) is the root mean square,
        and hypot(|x|, sqrt(size * eps)) adds its epsilon.
        """
        size = torch.linalg.vector_norm(x, 2, -1, True, dtype=torch.float32)
        return torch.mul(torch.div(x, torch.hypot(size, self._epsilon if epsilon is None else epsilon)), weight, out=torch.empty_like(x))

    def _attend(self, block: Block, cache: torch.Tensor, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
                mask: torch.Tensor, start: int) -> torch.Tensor:
        """Rotary attention of x [n, hidden] over the cache [2, Hkv, capacity, d] -> [n, Hq d], unprojected."""
        n, d = x.shape[0], self.head_dim
        heads = block.qkv(x).view(n, self.n_heads + 2 * self.n_kv_heads, d)
        turned = heads[:, : self.n_heads + self.n_kv_heads]
        if block.qk_norm is not None:
            turned = self._norm(turned, block.qk_norm, self._head_epsilon)
        swapped = turned.unflatten(-1, (2, d // 2)).flip(-2).flatten(-2)
        turned = torch.addcmul(turned * cos, swapped, sin)
        cache[0, :, start : start + n] = turned[:, self.n_heads :].transpose(0, 1)
        cache[1, :, start : start + n] = heads[:, self.n_heads + self.n_kv_heads :].transpose(0, 1)
        return self._scores(turned[:, : self.n_heads], cache, mask)

    def _scores(self, query: torch.Tensor, cache: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """softmax(Q K^T / sqrt(d)) V for query [n, Hq, d] -> [n, Hq d]. Groups of heads are rows of one head."""
        n, d, groups = query.shape[0], self.head_dim, self.n_groups
        keys, values = cache[:, None, :, : mask.shape[1]].unbind(0)
        rows = query.view(n, self.n_kv_heads, groups, d).permute(1, 2, 0, 3)
        rows = rows.reshape(1, self.n_kv_heads, groups * n, d)
        if mask.shape[0] > groups * n:
            rows = torch.cat([rows] * (mask.shape[0] // (groups * n)), dim=2)
        seen = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)[0, :, : groups * n]
        return seen.view(self.n_kv_heads, groups, n, d).permute(2, 0, 1, 3).reshape(n, self.n_heads * d)


def _linear_form(weights: str, device: torch.device) -> Callable[..., Linear]:
    if device.type != "cpu" or weights == "float32":
        return DenseLinear
    return {"bfloat16": PackedLinear, "int8": Int8Linear}[weights]
