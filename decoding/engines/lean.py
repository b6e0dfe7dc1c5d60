"""The lean engine: Llama-shaped models with fused weights and a cache of our own.

Shared code for Llama, Mistral without window, Qwen2, Qwen3 and SmolLM: pre-norm blocks of rotary attention (with biases
and query/key norms if the family has them) and a gated SiLU MLP. The weights come from a loaded transformers model and
the rotary tables from its rotary module, so that every scaling is right.

Batch-invariance: on the CPU a row's bits should not depend on the number of rows in a call. The attention
(attention.py) treats rows separately; the linear layers are tested and padded if necessary (invariance.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ..errors import UserError
from ..records.trace import ModelInfo
from .attention import MAX_ROWS, Attention, CacheShape, Plan, make_attention
from .base import DEFAULT_MAX_LENGTH, CachedModel, check_prompt, check_rewind, check_room
from .compiled.layers import PRODUCTS
from .formats import find_format
from .inputs import Branches, EncodedPrompt, already_in_place, encoded
from .invariance import PARTS, Company, keeps_bits, pad_rows
from .joined import Block, CompiledLayers, agree, join_layers
from .linears import FloatHead, Linear
from .projections import HEADS_WEIGHT, ParallelHeads, Projections
from .slim import Screen
from .text_tokens import TextTokens
from .threads import use_threads

log = logging.getLogger(__name__)

PREFILL_CHUNK = 256  # rows of one pass over a prompt, whose bits need not match other passes


class LeanModel(CachedModel):
    """A Llama-shaped :class:`~decoding.engines.base.CachedModel`.

    ``weights``: name of the number format (formats/).
    ``head_ids``: the tokens that a draft may propose in any text, sorted; its head then has only their rows, and those
    of the text's own tokens (text_tokens.py). ``screen``: of such a head (formats/int8.py). ``layers``: only so many
    of the first ones, for trials. Raises UserError where a layer's shape cannot be held in the format.
    """

    can_fork = can_branch = True

    # Weights and buffers are made under it.
    _building: type[torch.inference_mode] | type[torch.no_grad] = torch.inference_mode

    def __init__(
        self,
        hf_model: Any,
        info: ModelInfo,
        weights: str,
        device: str = "cpu",
        head_ids: torch.Tensor | None = None,
        layers: int | None = None,
        screen: Screen | None = None,
    ) -> None:
        config = hf_model.config
        self.info = info
        self.format = find_format(weights)
        self.hidden_size, self.vocab_size = config.hidden_size, config.vocab_size
        self.n_heads, self.n_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.device = torch.device(device)
        self._head_rows, self._screen = None if head_ids is None else head_ids.to(self.device), screen
        self.dtype = self.format.compute_on(self.device)
        self.max_length = min(DEFAULT_MAX_LENGTH, config.max_position_embeddings)
        self.length = 0
        self.kept_layers: tuple[int, ...] = ()
        self.last_states: tuple[torch.Tensor, ...] = ()
        self._padding: dict[tuple, Company] = {}  # by shape and number of threads
        self._most_rows = MAX_ROWS  # of a checking pass
        self._eps = config.rms_norm_eps
        self._epsilon = torch.tensor((self.hidden_size * config.rms_norm_eps) ** 0.5, device=self.device)
        self._head_epsilon = torch.tensor((self.head_dim * config.rms_norm_eps) ** 0.5, device=self.device)
        with self._building():
            self._take_weights(hf_model, layers)
            self._pad_rows()
            self._make_tables(hf_model)
            self._attention: Attention = self._make_attention()
            self._joined = self._join_layers()
            if self._joined is not None and not self._are_equal(self._joined):
                log.warning("compiled layers are wrong on this CPU, and not used")
                self._joined = None
        self.cache_bytes_per_token = (
            2 * len(self.blocks) * self.n_kv_heads * self.head_dim * self._attention.number_bytes
        )

    # -- construction

    def _make_attention(self) -> Attention:
        return make_attention(self._cache_shape())

    def _join_layers(self) -> CompiledLayers | None:
        """All layers as one call with the cache at hand, where that can be had."""
        if self.dtype != torch.float32:
            return None
        eps = torch.tensor([self.hidden_size * self._eps, self.head_dim * self._eps], dtype=torch.float32)
        return join_layers(self.blocks, self._attention, (self.final_norm, eps), (self.cos, self.sin), self.head)

    def _are_equal(self, joined: CompiledLayers) -> bool:
        """Whether three tokens leave the layers and the head as they do one by one, but for rounding."""
        x, plan, rows = self.embedding[:3], self._attention.plan(0, 3), self.embedding[:5].float()
        hidden, _ = self._run_blocks(x + x, self.cos[:3], self.sin[:3], plan)
        found = joined(self.embedding, range(3), x, 0, (), 2, rows)
        expected = hidden, self.head(hidden[1:]), hidden[1:] @ rows.t()
        pairs = zip(expected, (found.hidden, found.logits, found.more))
        return all(other is None or agree(other, one) for one, other in pairs)

    def _make_head(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        """The head, whose result is float32."""
        return FloatHead(self.format.head(weight, bias, self._head_rows is not None, self._screen))

    def _pad_rows(self) -> None:
        if self.device.type != "cpu":
            return
        linears = [getattr(block, name) for block in self.blocks for name in PRODUCTS]
        for part in (self.projections, self.parallel_heads):
            linears += part.linears if part else []
        pad_rows([*linears, self.head.linear] if isinstance(self.head, FloatHead) else linears, self._padding)
        limits = [linear.most for linear in linears if linear.most is not None]
        self._most_rows = min([MAX_ROWS, *limits])

    def _cache_shape(self) -> CacheShape:
        return CacheShape(
            len(self.blocks), self.n_heads, self.n_kv_heads, self.head_dim, self.max_length, self.dtype, self.device
        )

    def _take_weights(self, hf_model: Any, layers: int | None) -> None:
        def cast(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().to(self.device, self.dtype)

        def norm(module: Any) -> torch.Tensor:
            return self._norm_weight(cast(module.weight))

        def bias_of(*modules: Any) -> torch.Tensor | None:
            return None if modules[0].bias is None else torch.cat([cast(module.bias) for module in modules])

        def linear(*modules: Any) -> Linear:
            for module in modules:
                why = self.format.refusal(*module.weight.shape)
                if why:
                    raise UserError(
                        f"{self.info.name} cannot run in {self.format.name}: {why}. Leave the number format at auto."
                    )
            weight = torch.cat([cast(module.weight) for module in modules])
            return self.format.linear(weight, bias_of(*modules))

        self.embedding = cast(hf_model.model.embed_tokens.weight).contiguous()
        self.tied = hf_model.lm_head.weight is hf_model.model.embed_tokens.weight
        self.final_norm = norm(hf_model.model.norm)
        rows = slice(None) if self._head_rows is None else self._head_rows
        head = self.embedding if self.tied else cast(hf_model.lm_head.weight)
        bias = bias_of(hf_model.lm_head)
        self.head = self._make_head(head[rows], None if bias is None else bias[rows])
        self.text_tokens = None if self._head_rows is None else TextTokens(self._head_rows, head)
        self.blocks = []
        for layer in hf_model.model.layers[:layers]:
            attention, mlp = layer.self_attn, layer.mlp
            self.blocks.append(
                Block(
                    attention_norm=norm(layer.input_layernorm),
                    qkv=linear(attention.q_proj, attention.k_proj, attention.v_proj),
                    out=linear(attention.o_proj),
                    mlp_norm=norm(layer.post_attention_layernorm),
                    gate=linear(mlp.gate_proj),
                    up=linear(mlp.up_proj),
                    down=linear(mlp.down_proj),
                    qk_norm=self._query_key_norm(attention, norm),
                )
            )

    def _norm_weight(self, weight: torch.Tensor) -> torch.Tensor:
        """A norm's weight in the form for ``_norm``."""
        return weight.float() * weight.shape[-1] ** 0.5

    def _query_key_norm(self, attention: Any, norm: Callable) -> torch.Tensor | None:
        if not hasattr(attention, "q_norm"):
            return None
        query, key = norm(attention.q_norm), norm(attention.k_norm)
        return torch.cat([query.expand(self.n_heads, -1), key.expand(self.n_kv_heads, -1)])

    def _make_tables(self, hf_model: Any) -> None:
        """Rotary tables, [max_length, 1, d].

        Rotation is x * cos + swap(x) * sin with the halves of x swapped; ``sin`` includes the sign of the swap.
        """
        rotary = hf_model.model.rotary_emb
        positions = torch.arange(self.max_length, device=rotary.inv_freq.device)[None]
        cos, sin = rotary(torch.zeros(1, device=positions.device, dtype=torch.float32), positions)
        sin = torch.cat([-sin[..., : self.head_dim // 2], sin[..., self.head_dim // 2 :]], dim=-1)
        self.cos = cos[0, :, None].to(self.device, self.dtype).contiguous()
        self.sin = sin[0, :, None].to(self.device, self.dtype).contiguous()

    def set_threads(self, threads: int) -> None:
        """Changes the number of CPU threads and tests again whether rows keep their bits, since kernels may depend on
        it. Empties the cache.
        """
        self.info.threads = threads
        use_threads(threads)
        with self._building():
            self._pad_rows()
        self.note = None if keeps_bits(self) else PARTS

    def take_projections(self, weights: Mapping[str, torch.Tensor], layers: int) -> None:
        """Makes it a draft that reads the target's states after ``layers`` layers: by projections of them, or by
        parallel heads (projections.py).
        """
        with self._building():
            given = (weights, layers, self.hidden_size, self.device, self.dtype, self.format.linear)
            if HEADS_WEIGHT in weights:
                self.parallel_heads = ParallelHeads(*given, self.head)
            else:
                self.projections = Projections(*given)
            self._pad_rows()

    def fork(self) -> LeanModel:
        other = copy(self)
        other.length, other.last_states, other.likeliest = 0, (), None
        other.text_tokens = None if self.text_tokens is None else self.text_tokens.fork()
        with self._building():
            other._attention = other._make_attention()
            other._joined = None if self._joined is None else other._join_layers()
        return other

    # -- use

    def prefill(self, prompt: list[int] | EncodedPrompt) -> torch.Tensor:
        prompt = encoded(prompt)
        check_prompt(prompt.ids, self.max_length)
        self.rewind(0)
        self._take_text(prompt.text)
        if prompt.embeddings is None:
            return self._read(self.embedding, prompt.ids, PREFILL_CHUNK, None, None, 1)
        with torch.inference_mode():
            x = F.embedding(torch.tensor(prompt.ids, device=self.device), self.embedding)
            x[prompt.at : prompt.at + prompt.n_placeholders] = prompt.embeddings.to(x)
        return self._read(x, range(len(x)), PREFILL_CHUNK, None, None, 1)

    def extend(
        self,
        ids: list[int],
        branches: Branches | None = None,
        added: torch.Tensor | None = None,
        last: int | None = None,
    ) -> torch.Tensor:
        check_room(self.length, len(ids), self.max_length)
        self._take_text(ids)
        return self._read(self.embedding, ids, self._most_rows, branches, added, len(ids) if last is None else last)

    @property
    def head_ids(self) -> np.ndarray | None:  # type: ignore[override]
        return None if self.text_tokens is None else self.text_tokens.ids

    def _take_text(self, ids: list[int]) -> None:
        """``ids`` are about to be read."""
        if self.text_tokens is not None:
            self.text_tokens.read(ids, self.length)

    def _read(
        self,
        table: torch.Tensor,
        ids: Sequence[int],
        rows: int,
        branches: Branches | None,
        added: torch.Tensor | None,
        last: int,
    ) -> torch.Tensor:
        """Logits after the ``last`` of n tokens with the embeddings ``table[ids]``, to which ``added`` [n, hidden] is
        added: [last, vocab], or [last, len(head_ids)]. Appends them to the cache, at most ``rows`` in one pass.
        """
        n = len(ids)
        if n <= rows:
            logits, self.last_states = self._forward(table, ids, added, branches, last)
            return logits
        passes = []
        for first in range(0, n, rows):
            end = min(first + rows, n)
            more = None if added is None else added[first:end]
            nodes = None if branches is None else branches.part(first, end)
            wanted = min(max(0, last - (n - end)), end - first)
            logits, states = self._forward(table, ids[first:end], more, nodes, wanted)
            passes.append((logits, [state.clone() for state in states]))
        self.last_states = tuple(torch.cat(parts) for parts in zip(*(states for _, states in passes)))
        return torch.cat([logits for logits, _ in passes if len(logits)])

    def rewind(self, length: int, rows: Sequence[int] = ()) -> None:
        """Keeps the first ``length`` tokens and ``rows``; the rest is masked, then overwritten."""
        check_rewind(length, self.length, rows)
        done = already_in_place(length, rows)
        if done < len(rows):
            with torch.inference_mode():
                self._attention.move(rows[done:], length + done)
        self.length = length + len(rows)
        if self.text_tokens is not None:
            self.text_tokens.rewind(self.length)

    def _forward(
        self,
        table: torch.Tensor,
        ids: Sequence[int],
        added: torch.Tensor | None,
        branches: Branches | None,
        last: int,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """The logits, and the hidden states of ``kept_layers``, of one pass, as ``_read``; ``last`` may be 0."""
        if self.device.type == "cpu":
            use_threads(self.info.threads)
        start, n = self.length, len(ids)
        if branches is not None and branches.is_chain(start):
            branches = None  # the same rows are seen, in fewer steps
        text, logits, own, self.likeliest = self.text_tokens, None, None, None
        if self._joined is None or (branches is None and n > MAX_ROWS):
            hidden, states = self._run_each(table, ids, added, branches)
        else:
            added = None if added is None else added.float().contiguous()
            more = text.rows[: len(text)] if text else None
            paths = None if branches is None else self._attention.plan(start, n, branches).indices
            found = self._joined(table, ids, added, start, self.kept_layers, last, more, text is not None, paths)
            hidden, states, logits, own, self.likeliest = found
        self.length = start + n
        if logits is None or (text and logits.shape[1] < len(text.ids)):
            logits = self._scored(logits, own, hidden[n - last :])
        return logits, states

    @torch.inference_mode()
    def _scored(self, logits: torch.Tensor | None, own: torch.Tensor | None, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of the last rows, whose final-norm output is ``hidden``, and beside them those of the text's own
        tokens, ``own``, as far as there are none yet.
        """
        logits, text = self.head(hidden) if logits is None else logits, self.text_tokens
        if not text:
            return logits
        return torch.cat([logits, text.seen(text.own(hidden) if own is None else own, self.length)], 1)

    @torch.inference_mode()
    def _run_each(
        self, table: torch.Tensor, ids: Sequence[int], added: torch.Tensor | None, branches: Branches | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Layer by layer, as ``_run_blocks``."""
        start, n = self.length, len(ids)
        x = F.embedding(torch.tensor(ids, device=self.device), table)
        x = x if added is None else x + added
        turns = slice(start, start + n) if branches is None else branches.positions
        return self._run_blocks(x, self.cos[turns], self.sin[turns], self._attention.plan(start, n, branches))

    def _run_blocks(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, plan: Plan
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """All layers and the final norm: embeddings [n, hidden] -> [n, hidden], and the states of ``kept_layers``."""
        wanted = [layer % (len(self.blocks) + 1) for layer in self.kept_layers]
        kept = {}
        for layer, block in enumerate(self.blocks):
            if layer in wanted:
                kept[layer] = x
            attended = self._attend(block, layer, self._norm(x, block.attention_norm), cos, sin, plan)
            x = block.out.plus(attended, x)
            h = self._norm(x, block.mlp_norm)
            x = block.down.plus(block.up(h).mul_(F.silu(block.gate(h), inplace=True)), x)
        kept[len(self.blocks)] = hidden = self._norm(x, self.final_norm)
        return hidden, tuple(kept[layer] for layer in wanted)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: torch.Tensor | None = None) -> torch.Tensor:
        """x / rms(x) * weight over the last axis, in float32 inside; ``weight`` is already multiplied by sqrt(size).

        Equal to F.rms_norm, which takes a dozen operations on the CPU: |x| / sqrt(size) is the root mean square, and
        hypot(|x|, sqrt(size * eps)) adds its epsilon.
        """
        size = torch.linalg.vector_norm(x, 2, -1, True, dtype=torch.float32)
        scaled = torch.div(x, size.hypot_(self._epsilon if epsilon is None else epsilon))
        return scaled.mul_(weight) if x.dtype == torch.float32 else torch.mul(scaled, weight, out=torch.empty_like(x))

    def _attend(
        self, block: Block, layer: int, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, plan: Plan
    ) -> torch.Tensor:
        """Rotary attention of x [n, hidden] -> [n, Hq d], before the output projection."""
        n, d = x.shape[0], self.head_dim
        n_turned = self.n_heads + self.n_kv_heads
        heads = block.qkv(x).view(n, n_turned + self.n_kv_heads, d)
        turned = heads[:, :n_turned]
        if block.qk_norm is not None:
            turned = self._norm(turned, block.qk_norm, self._head_epsilon)
        torch.addcmul(turned * cos, turned.roll(d // 2, -1), sin, out=heads[:, :n_turned])  # all heads in one tensor
        return self._attention.attend(layer, heads, plan)
