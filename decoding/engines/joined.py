"""The lean engine's layers and head, and a draft's projections, each as one compiled call, where all that it does is
compiled. Names in capitals are those of compiled/layers.py, whose functions are called here.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .attention import Attention, CompiledAttention
from .compiled import Function
from .compiled.attention import SEEN, attention_kernel, chains
from .compiled.layers import HEAD, NORMS, PRODUCTS, SCREEN, layers_functions
from .compiled.readout import JUDGED, Reading
from .compiled.writer import LANES
from .formats.int8 import ScreenedLinear
from .linears import CompiledLinear, FloatHead, Linear

log = logging.getLogger(__name__)

_KEPT_ROWS = 8  # passes of up to so many rows write where the last one wrote: allocating takes longer than a norm


@dataclass(slots=True)
class Block:
    """Weights of one layer. ``qkv`` is [(Hq + 2 Hkv) d, hidden]; norms are float32, multiplied by the square root of
    their size.
    """

    attention_norm: torch.Tensor
    qkv: Linear
    out: Linear
    mlp_norm: torch.Tensor
    gate: Linear
    up: Linear
    down: Linear
    qk_norm: torch.Tensor | None  # [Hq + Hkv, d], if the family normalises queries and keys


class Pass(NamedTuple):
    """Of a pass over n rows: the final norm's output [n, size], the states of the kept layers, each [n, size], and of
    the last rows the head's logits [last, vocab], or None where the head is not compiled, and those of further rows of
    the head [last, n_more]. If there is one last row, ``logits`` has both, and ``likeliest`` is of them, if it was
    asked for.
    """

    hidden: torch.Tensor
    states: tuple[torch.Tensor, ...]
    logits: torch.Tensor | None
    more: torch.Tensor | None
    likeliest: Reading | None


class _Buffers(NamedTuple):
    """Of passes over some number of rows: the states before each layer, then the final norm's output; where these
    and ``SCRATCH`` begin.
    """

    states: list[torch.Tensor]
    pointers: list[int]
    scratch: torch.Tensor


class CompiledLayers:
    """The layers of a model with one cache."""

    def __init__(
        self,
        run: Function,
        layers: Sequence[Sequence[int]],
        norms: tuple[torch.Tensor, torch.Tensor],
        turns: tuple[torch.Tensor, torch.Tensor],
        sizes: tuple[int, ...],
        head: tuple[int, ...] | None,
        vocab: int,
    ) -> None:
        """``layers``: of each what ``COLUMNS`` name; ``qk_norm`` [Hq + Hkv, d], or 0. ``norms``: the final weight, and
        what is added to the sum of squares of a row, and of a head. ``turns``: the rotary tables [positions, 1, d].
        ``sizes``: what ``SIZES`` name. ``head``: what ``MATRIX`` name of the head, and then ``SCREEN``, or None if it
        is not packed for the same product; ``vocab``: its outputs.
        """
        self._run, self._layers = run, torch.tensor(layers)
        self._fixed = (*(head or (0,) * len(HEAD)), len(layers), *sizes)
        self._n_layers, self._vocab = len(layers), vocab if head else 0
        self._kept: dict[int, _Buffers] = {}
        self._chains = chains(sizes[0])
        self._token, self._judged = ctypes.c_int64(), (ctypes.c_float * JUDGED)()
        self._found_at = ctypes.addressof(self._token), ctypes.addressof(self._judged)
        self._tables = (self._layers, *norms, *turns)
        self._tables_at = [table.data_ptr() for table in self._tables]
        _, n_heads, n_kv_heads, d, self._size, inner = sizes
        queries, widest = n_heads * d, max(n_heads * d, self._size, inner)
        heads = queries + 2 * n_kv_heads * d
        self._scratch = (self._size, heads, heads, queries, self._size, self._size, inner, inner, widest)
        self._work = len(layers) * (self._size * (heads + queries) + 3 * self._size * inner)

    def __call__(
        self,
        table: torch.Tensor,
        ids: Sequence[int],
        added: torch.Tensor | None,
        start: int,
        kept_layers: Sequence[int],
        last: int,
        more_rows: torch.Tensor | None = None,
        judges: bool = False,
        paths: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> Pass:
        """Of n rows with the embeddings ``table[ids]``, to which ``added`` [n, size] is added, and which come into the
        cache at ``start``; ``kept_layers``: as in CachedModel. ``more_rows`` [n_more, size]: of the head. ``judges``:
        whether the likeliest token is wanted. ``paths``: of a tree, what each row sees, and places, as
        :meth:`AttentionKernel.attend` takes them; a row's position is the number of keys that it sees, less one. All
        tensors are float32 and contiguous, and ``table`` [n_ids, size]. Raises IndexError for an id beyond it.
        """
        if not 0 <= min(ids) <= max(ids) < table.shape[0]:
            raise IndexError(f"there is no embedding for each of {list(ids)}")
        n, n_logits = len(ids), last * self._vocab
        n_more = 0 if more_rows is None else more_rows.shape[0]
        buffers, logits = self._buffers(n), torch.empty(n_logits + last * n_more, dtype=torch.float32)
        added_at, more_at = (0 if one is None else one.data_ptr() for one in (added, more_rows))
        seen_at = self._chains.data_ptr() + start * SEEN * self._chains.itemsize, 0
        if paths is not None:
            seen_at = paths[0].data_ptr(), paths[1].data_ptr()
        logits_at = logits.data_ptr()
        found = logits_at, more_at, logits_at + logits.itemsize * n_logits, *self._found_at
        judged = self._vocab if judges and last == 1 else 0  # so many logits, and those of ``more_rows``
        numbers = added is not None, judged, n, last, n_more, start
        pointers = *self._tables_at, table.data_ptr(), added_at, *buffers.pointers, *seen_at, *found
        work = n * self._work + n_logits * self._size
        self._run(*pointers, *numbers, *self._fixed, *ids, parts=n * self._size, work=work)
        kept = tuple(buffers.states[layer % (self._n_layers + 1)] for layer in kept_layers)
        likeliest = Reading(self._token.value, *self._judged) if judged else None
        return Pass(buffers.states[-1], kept, *self._logits_of(logits, last, n_more), likeliest)

    def _buffers(self, n: int) -> _Buffers:
        """For ``n`` rows."""
        found = self._kept.get(n)
        if found is None:
            # Before each layer, after the last one, which nobody asks for, and after the final norm.
            states = torch.empty(self._n_layers + 2, n, self._size, dtype=torch.float32)
            scratch = torch.empty(n * sum(self._scratch), dtype=torch.float32)
            at, pointers = scratch.data_ptr(), [states.data_ptr(), states[-1].data_ptr()]
            for size in self._scratch:
                pointers.append(at)
                at += scratch.itemsize * n * size
            found = _Buffers([*states[: self._n_layers], states[-1]], pointers, scratch)
            if n <= _KEPT_ROWS:
                self._kept[n] = found
        return found

    def _logits_of(
        self, found: torch.Tensor, last: int, n_more: int
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """``found``: the head's logits row by row, and then the others."""
        if last == 1 and self._vocab:
            return found[None], None
        logits = found[: last * self._vocab].view(last, self._vocab) if self._vocab else None
        return logits, found[last * self._vocab :].view(last, n_more) if n_more else None


class CompiledProjection:
    """Hidden states of ``parts`` layers, each [n, size] -> [n, out] float32: the product by a matrix of what each part,
    divided by its length, is times its scale. ``parts`` 0: of one layer's, which are not divided.
    """

    def __init__(self, project: Function, matrix: tuple[int, ...], n_out: int, scale: torch.Tensor, parts: int) -> None:
        """``matrix``: what ``MATRIX`` name. ``scale`` [parts, size], or [size]."""
        self._project, self._n_out, self._scale = project, n_out, scale.float().contiguous()
        self._epsilon = torch.tensor([1e-12], dtype=torch.float32)
        self._tables_at = self._scale.data_ptr(), self._epsilon.data_ptr()
        self._fixed, self._inputs = (*matrix, parts, scale.shape[-1]), scale.numel()

    def __call__(self, *states: torch.Tensor) -> torch.Tensor:
        n, inputs, single = len(states[0]), self._inputs, torch.float32
        held = [one.to(single).contiguous() for one in states]
        y, scratch = torch.empty(n, self._n_out, dtype=single), torch.empty(2 * n * inputs, dtype=single)
        at = scratch.data_ptr()
        pointers = *self._tables_at, at, at + single.itemsize * n * inputs, y.data_ptr()
        each = (one.data_ptr() for one in held)
        self._project(*pointers, n, *self._fixed, *each, parts=self._n_out, work=n * inputs * self._n_out)
        return y


def join_layers(
    blocks: Sequence[Block],
    attention: Attention,
    norms: tuple[torch.Tensor, torch.Tensor],
    turns: tuple[torch.Tensor, torch.Tensor],
    head: Any,
) -> CompiledLayers | None:
    """``head``: lean.py's. ``norms``, ``turns``: as CompiledLayers takes them. None where a product or the
    attention is not compiled, or a matrix of a block has padding.
    """
    if not blocks or not isinstance(attention, CompiledAttention) or turns[0].shape[-1] % (2 * LANES):
        return None
    layers, kernels = [], set()
    for layer, block in enumerate(blocks):
        row = [getattr(block, norm).data_ptr() for norm in NORMS]
        row.append(0 if block.qk_norm is None else block.qk_norm.data_ptr())
        row += attention.keys[layer].data_ptr(), attention.values[layer].data_ptr()
        for linear in (getattr(block, product) for product in PRODUCTS):
            fields = _fields_of(linear)
            if fields is None:
                return None
            row += fields
            kernels.add(linear.kernel)
        layers.append(row)
    functions = layers_functions(*kernels, attention.kernel) if len(kernels) == 1 else None
    if functions is None:
        return None
    last = head.linear if isinstance(head, FloatHead) else None
    joined = last.fields if isinstance(last, CompiledLinear | ScreenedLinear) and last.kernel in kernels else None
    if joined is not None and isinstance(last, CompiledLinear):
        joined += (0,) * len(SCREEN)
    n_kv_heads, d = attention.values[0].shape[0], turns[0].shape[-1]
    n_heads = blocks[0].out.n_in // d
    sizes = attention.capacity, n_heads, n_kv_heads, d, blocks[0].out.n_out, blocks[0].gate.n_out
    return CompiledLayers(functions.run, layers, norms, turns, sizes, joined, 0 if last is None else last.n_out)


def join_projection(
    linear: Linear, scale: torch.Tensor, parts: int, plain: Callable[..., torch.Tensor]
) -> CompiledProjection | None:
    """``scale``, ``parts``: as CompiledProjection takes them. None where the product is not compiled, or where the call
    computes something else than ``plain``.
    """
    fields, attention = _fields_of(linear), attention_kernel()
    if fields is None or attention is None or scale.shape[-1] % LANES:
        return None
    assert isinstance(linear, CompiledLinear)
    functions = layers_functions(linear.kernel, attention)
    if functions is None:
        return None
    made = CompiledProjection(functions.project, fields, linear.n_out, scale, parts)
    shape = max(1, parts), 2, scale.shape[-1]
    states = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    if agree(made(*states), plain(*states)):
        return made
    log.warning("a compiled projection is wrong on this CPU, and not used")
    return None


def agree(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether they are the same but for rounding."""
    return bool((found - expected).norm() < 0.02 * expected.norm())


def _fields_of(linear: Linear) -> tuple[int, ...] | None:
    return linear.fields if isinstance(linear, CompiledLinear) else None
