"""Decodes many texts at once on a CPU, each at its own position, over a preallocated cache.

When a text ends, its row is reused immediately (continuous batching, Yu et al. 2022). All texts share their first
tokens, whose keys and values stay in the cache: a new text only resets its row's position and needs no prefill.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from decoding.engines.instructions import multiplies_bfloat16

from .llama import Llama

CHUNK = 32
"""Rows that attend together, over the positions of the longest of them."""
STRIDE = 32
"""Steps between two layouts of the cache; each layout groups rows of similar length."""


class RowDecoder:
    """The target, in bfloat16 where the CPU multiplies it and else in float32, with a cache for ``rows`` texts of up to
    ``length`` tokens that start with ``prefix``.

    ``positions`` (rows,) are the positions of the rows' next tokens; ``states`` (rows, layers, width), bfloat16, are
    the hidden states of the last step after each of ``state_layers`` layers.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        prefix: list[int],
        rows: int,
        length: int,
        state_layers: tuple[int, ...] = (),
    ) -> None:
        self.rows, self.length, self.prefix = rows, length, len(prefix) - 1
        self.dtype = torch.bfloat16 if multiplies_bfloat16() else torch.float32
        self.llama = Llama(model, length, self.dtype, self.dtype, rows)
        self.kv_heads, self.head_dim = self.llama.kv_heads, self.llama.head_dim
        self.state_layers = state_layers
        self.states = torch.zeros(rows, len(state_layers), model.config.hidden_size, dtype=torch.bfloat16)
        self.positions = torch.full((rows,), self.prefix)
        self._caches = self._allocate()
        self._read_prefix(model, prefix)

    def _chunks(self) -> list[slice]:
        return [slice(start, min(start + CHUNK, self.rows)) for start in range(0, self.rows, CHUNK)]

    @staticmethod
    def _room(position: int) -> int:
        """Cells for STRIDE more steps from a position: a multiple of STRIDE, because products of other lengths are
        slower.
        """
        return -(-(position + STRIDE + 1) // STRIDE) * STRIDE

    def _allocate(self) -> list[tuple[Tensor, list[Tensor]]]:
        """For each layer's keys, then each layer's values: one buffer (cells, head_dim), and a view of it for each
        chunk, (rows, kv_heads, length, head_dim). Views are contiguous: torch's batched product copies other tensors.
        """
        chunks = self._chunks()
        self._lengths = [self._room(int(self.positions[rows].max())) for rows in chunks]
        sizes = [(rows.stop - rows.start) * self.kv_heads * length for rows, length in zip(chunks, self._lengths)]
        cells = torch.tensor([0, *sizes]).cumsum(0).tolist()
        starts = [
            start + torch.arange((rows.stop - rows.start) * self.kv_heads) * length
            for start, rows, length in zip(cells, chunks, self._lengths)
        ]
        self._first_cells = torch.cat(starts).view(self.rows, self.kv_heads)
        self._steps_left = STRIDE
        caches = []
        for _ in range(2 * len(self.llama.layers)):
            buffer = torch.zeros(cells[-1], self.head_dim, dtype=self.dtype)
            parts = [
                buffer[start:end].view(-1, self.kv_heads, length, self.head_dim)
                for start, end, length in zip(cells, cells[1:], self._lengths)
            ]
            caches.append((buffer, parts))
        return caches

    @torch.no_grad()
    def _read_prefix(self, model: LlamaForCausalLM, prefix: list[int]) -> None:
        """Writes the keys and values of the prefix, except its last token, into every row."""
        if not self.prefix:
            return
        layers = model(torch.tensor([prefix[:-1]]), use_cache=True).past_key_values.layers
        read = [layer.keys for layer in layers] + [layer.values for layer in layers]
        for (_, parts), state in zip(self._caches, read):
            for part in parts:
                part[:, :, : self.prefix] = state.to(self.dtype)

    def restart(self, row: int) -> None:
        """Resets a row to the end of the prefix; its next token must be the prefix's last."""
        self.positions[row] = self.prefix

    @torch.no_grad()
    def arrange(self) -> list[int] | None:
        """Makes a new layout if one is due, and returns the order of the rows in it (row order[i] is now row i); None
        otherwise. Call it before each step.
        """
        if self._steps_left:
            return None
        order = self.positions.argsort()
        lengths = self.positions[order].tolist()
        self.positions = self.positions[order]
        before, self._caches = self._caches, self._allocate()
        for (_, old), (_, new) in zip(before, self._caches):
            for row, (source, length) in enumerate(zip(order.tolist(), lengths)):
                kept = old[source // CHUNK][source % CHUNK, :, :length]
                new[row // CHUNK][row % CHUNK, :, :length] = kept
        return order.tolist()

    @torch.no_grad()
    def step(self, ids: Tensor) -> Tensor:
        """Logits (rows, vocabulary) after one more token in every row; ids (rows,)."""
        cells = (self._first_cells + self.positions[:, None]).flatten()
        masks = [self._mask(rows, length) for rows, length in zip(self._chunks(), self._lengths)]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            (keys, key_parts), (values, value_parts) = self._caches[layer], self._caches[len(self.llama.layers) + layer]
            keys.index_copy_(0, cells, k.reshape(-1, self.head_dim))
            values.index_copy_(0, cells, v.reshape(-1, self.head_dim))
            return self._attend(q * self.head_dim**-0.5, key_parts, value_parts, masks)

        last, states = self.llama.run(ids, self.positions, attend, self.state_layers)
        if states:
            self.states = torch.stack(states, dim=1).bfloat16()
        self.positions = self.positions + 1
        self._steps_left -= 1
        return self.llama.logits(last)

    def _mask(self, rows: slice, length: int) -> Tensor:
        """The attention mask over ``length`` cells: 0 or minus infinity, (rows, 1, 1, length)."""
        unseen = torch.arange(length) > self.positions[rows, None]
        return torch.zeros(unseen.shape).masked_fill(unseen, -torch.inf)[:, None, None]

    def _attend(self, q: Tensor, keys: list[Tensor], values: list[Tensor], masks: list[Tensor]) -> Tensor:
        """Attention of scaled queries (rows, heads, head_dim), one position per row: (rows, heads * head_dim)."""
        grouped = q.view(self.rows, self.kv_heads, -1, self.head_dim)
        parts = []
        for rows, key, value, mask in zip(self._chunks(), keys, values, masks):
            scores = torch.matmul(grouped[rows], key.transpose(-1, -2)).float().add_(mask)
            parts.append(torch.matmul(scores.softmax(-1).to(self.dtype), value))
        return torch.cat(parts).view(self.rows, -1)
