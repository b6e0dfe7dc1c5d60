"""A draft that reads the target's hidden states (EAGLE-3: Li et al. 2025, sections 3.1 and 3.2), for training."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, apply_rotary_pos_emb

from decoding.engines.projections import BLOCK_BIAS, BLOCK_WEIGHT, HEADS_BIAS, HEADS_WEIGHT

from .drafts import in_halves

Memory = list[tuple[Tensor, Tensor]]
"""Keys and values (texts, kv_heads, length, head_dim) of one layer in each step so far."""


class FeatureDraft(nn.Module):
    """A Llama ``trunk`` that reads more than embeddings.

    At each position its input is the token's embedding plus, for the first guess of an iteration, ``fuse`` of the
    target's normalised hidden states of the token before, after each of ``layers``; for later guesses ``own`` of its
    own last state there. Both projections start at zero, so that the draft starts with the trunk's guesses; without
    ``layers`` they stay there, and it reads the text alone.

    Both read standardised states, (x - centre) * scale, since a common offset of all states would outweigh what tells
    one from another: ``centre`` and ``scale`` (layers * width) of the target's states divided by their root mean
    square, ``own_centre`` and ``own_scale`` (width) of the draft's; constants, set by ``standardise``.
    """

    centre: Tensor
    scale: Tensor
    own_centre: Tensor
    own_scale: Tensor

    def __init__(self, trunk: LlamaForCausalLM, layers: tuple[int, ...]) -> None:
        super().__init__()
        width = trunk.config.hidden_size
        self.trunk, self.layers = trunk, layers
        for name, size in (("", len(layers) * width), ("own_", width)):
            self.register_buffer(f"{name}centre", torch.zeros(size))
            self.register_buffer(f"{name}scale", torch.ones(size))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without layers torch warns that there is nothing to initialise
            self.fuse = nn.Linear(len(layers) * width, width, bias=False)
        self.own = nn.Linear(width, width, bias=False)
        for projection in (self.fuse, self.own):
            projection.weight.data.zero_()
            projection.requires_grad_(bool(layers))

    def fused(self, states: Tensor) -> Tensor:
        """States (..., layers, width) of the target -> what is added to the next token's embedding, (..., width)."""
        return self.fuse((self.normed(states) - self.centre) * self.scale)

    def normed(self, states: Tensor) -> Tensor:
        """States (..., layers, width), each divided by its root mean square, as (..., layers * width), float32."""
        states = states.float()
        size = torch.linalg.vector_norm(states, 2, -1, True).clamp_min(1e-6)  # as the engines do
        return (states / size * states.shape[-1] ** 0.5).flatten(-2)

    def stored(self) -> dict[str, Tensor]:
        """The weights that a draft's folder holds beside its trunk (decoding/engines/projections.py)."""
        return {name: value for name, value in self.state_dict().items() if not name.startswith("trunk.")}

    def take(self, weights: Mapping[str, Tensor]) -> None:
        self.load_state_dict(weights, strict=False)

    @torch.no_grad()
    def standardise(self, states: Tensor, ids: Tensor, valid: Tensor) -> None:
        """Sets the constants by ``states`` (texts, length, layers, width) and the last states that the draft has after
        ``ids`` (texts, length), where ``valid``.
        """
        last = next(self.unroll(ids, states, 1))[valid].float()
        for name, found in (("", self.normed(states[valid])), ("own_", last)):
            getattr(self, f"{name}centre").copy_(found.mean(0))
            getattr(self, f"{name}scale").copy_(1 / found.std(0, correction=0).clamp_min(1e-3))

    def unroll(self, ids: Tensor, states: Tensor, steps: int) -> Iterator[Tensor]:
        """Training-time test: the draft reads ``ids`` (texts, length) as in ``steps`` guesses of an iteration.

        Yields for each step its last states (texts, length, width). Those of step s at position i belong to an
        iteration that began at i - s: the draft has read the states of the target up to there, and its own after it.
        Positions before s are void. ``states`` (texts, length, layers, width): the target's, of the token before.
        """
        with in_halves(ids.device):
            embedded = self.trunk.model.embed_tokens(ids)
            places = torch.arange(ids.shape[1], device=ids.device)[None]
            turns = self.trunk.model.rotary_emb(embedded, places)
            memories: list[Memory] = [[] for _ in self.trunk.model.layers]
            fused = self.fused(states)
            read = embedded + fused
            for step in range(1, steps + 1):
                hidden = read
                for layer, memory in zip(self.trunk.model.layers, memories):
                    assert isinstance(layer, LlamaDecoderLayer)
                    hidden = self._layer(layer, hidden, turns, memory)
                last = self.trunk.model.norm(hidden)
                yield last
                if step < steps:
                    read = self._read_later(step, embedded, fused, last)

    def _read_later(self, step: int, embedded: Tensor, fused: Tensor, last: Tensor) -> Tensor:
        """What the draft reads for guess ``step`` after the first, if ``last`` are its states of the guess before."""
        return embedded + self.own((last.float().roll(1, dims=1) - self.own_centre) * self.own_scale)

    def _layer(self, layer: LlamaDecoderLayer, x: Tensor, turns: tuple[Tensor, Tensor], memory: Memory) -> Tensor:
        """One layer over (texts, length, width); appends this step's keys and values to ``memory``."""
        normed, attention = layer.input_layernorm(x), layer.self_attn
        parts = (attention.q_proj(normed), attention.k_proj(normed), attention.v_proj(normed))
        query, key, value = (part.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2) for part in parts)
        query, key = apply_rotary_pos_emb(query, key, *turns)
        memory.append((key, value))
        x = x + attention.o_proj(attend(query * attention.scaling, memory))
        return x + layer.mlp(layer.post_attention_layernorm(x))


def attend(query: Tensor, memory: Memory) -> Tensor:
    """Attention of the scaled queries (texts, heads, length, head_dim) of the last step: (texts, length, width).

    In step s position i sees the first step's positions up to i - s, and of each later step t position i - s + t.
    """
    (keys, values), later = memory[0], memory[1:]
    texts, kv_heads, length, size = keys.shape
    grouped = query.reshape(texts, kv_heads, -1, size)  # queries that share keys
    unseen = torch.full((length, length), -torch.inf, device=query.device).triu(1 - len(later))
    scores = [(grouped @ keys.transpose(-1, -2)).unflatten(2, (-1, length)).float() + unseen]
    grouped = grouped.unflatten(2, (-1, length))
    moved = [tuple(part.roll(len(later) - 1 - t, 2)[:, :, None] for part in pair) for t, pair in enumerate(later)]
    scores += [(grouped * key).sum(-1, keepdim=True).float() for key, _ in moved]
    weights = torch.cat(scores, -1).softmax(-1).to(values.dtype)
    found = (weights[..., :length].flatten(2, 3) @ values).unflatten(2, (-1, length))
    for t, (_, value) in enumerate(moved):
        found = found + weights[..., length + t, None] * value
    return found.flatten(1, 2).transpose(1, 2).flatten(-2)


class BlockDraft(FeatureDraft):
    """Guesses ``n`` tokens in one pass, as DFlash does (Chen, Liang and Liu 2026).

    In the place of guess k after the first it reads the text's last token again: its embedding plus projection k of
    what ``fuse`` gave with it. These projections start at zero and alone are trained; ``own`` is not read.
    """

    def __init__(self, trunk: LlamaForCausalLM, layers: tuple[int, ...], n: int) -> None:
        super().__init__(trunk, layers)
        self.requires_grad_(False)
        self.block = Linears(trunk.config.hidden_size, n - 1)

    def _read_later(self, step: int, embedded: Tensor, fused: Tensor, last: Tensor) -> Tensor:
        return (embedded + self.block[step - 1](fused)).roll(step, dims=1)

    def stored(self) -> dict[str, Tensor]:
        """Of these weights only those that the draft lacks from which it started."""
        return self.block.stored(BLOCK_WEIGHT, BLOCK_BIAS)

    def take(self, weights: Mapping[str, Tensor]) -> None:
        super().take(weights)
        if BLOCK_WEIGHT in weights:
            self.block.take(weights[BLOCK_WEIGHT], weights[BLOCK_BIAS])


class HeadsDraft(nn.Module):
    """``n`` heads: guess k of an iteration is read by the target's own head from x + SiLU(W_k x + b_k), where x is the
    target's last hidden state of the token before that iteration.

    They start at zero, with the target's own next token as each guess. ``trunk`` has no layers: it is the folder's.
    """

    def __init__(self, trunk: LlamaForCausalLM, n: int) -> None:
        super().__init__()
        width = trunk.config.hidden_size
        self.trunk = trunk.requires_grad_(False)
        self.heads = Linears(width, n)

    def unroll(self, ids: Tensor, states: Tensor, steps: int) -> Iterator[Tensor]:
        """As FeatureDraft.unroll: for each of ``steps`` guesses the states (texts, length, width) that it is read from.

        Those of guess s at position i belong to an iteration that began at i - s. ``states`` (texts, length, 1, width):
        the target's, of the token before; ``ids`` are not read.
        """
        x = states[..., 0, :].float()
        with in_halves(x.device):
            for step, head in enumerate(list(self.heads)[:steps]):
                yield (x + silu(head(x))).roll(step, dims=1)

    def stored(self) -> dict[str, Tensor]:
        return self.heads.stored(HEADS_WEIGHT, HEADS_BIAS)

    def take(self, weights: Mapping[str, Tensor]) -> None:
        self.heads.take(weights[HEADS_WEIGHT], weights[HEADS_BIAS])


class Linears(nn.ModuleList):
    """``n`` affine maps of states, which start at zero."""

    def __init__(self, width: int, n: int) -> None:
        super().__init__(nn.Linear(width, width) for _ in range(n))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    @property
    def _linears(self) -> list[nn.Linear]:
        return [one for one in self if isinstance(one, nn.Linear)]

    def stored(self, weight: str, bias: str) -> dict[str, Tensor]:
        """Their weights [n, width, width] and biases [n, width] under these names."""
        return {
            weight: torch.stack([one.weight for one in self._linears]),
            bias: torch.stack([one.bias for one in self._linears]),
        }

    @torch.no_grad()
    def take(self, weights: Tensor, biases: Tensor) -> None:
        for one, weight, bias in zip(self._linears, weights, biases, strict=True):
            one.weight.copy_(weight)
            one.bias.copy_(bias)
