"""All layers of a pass in one call: norms, rotation, residual sums and the gate of Llama-shaped blocks, between the
compiled products and attention.

One by one these are some twenty small operations a layer, which torch takes longer to begin than to do. Rows are
treated separately, so that a row's bits do not depend on the others. Threads that share a call wait for each other
after each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from . import Cpu, Function, compiled, find_openmp, load
from .attention import AttentionKernel
from .products import Product
from .writer import LANES, Writer

PRODUCTS = ("qkv", "out", "gate", "up", "down")  # of a block
NORMS = ("attention_norm", "mlp_norm")
_MATRIX = ("weights", "scales", "steps", "blocks")  # of a product
_COLUMNS = (*NORMS, "keys", "values", *(f"{product}_{part}" for product in PRODUCTS for part in _MATRIX))
_TABLES = ("layers", "final_norm", "epsilon", "cos", "sin")
_SCRATCH = ("normed", "heads", "attended", "middle", "gate", "up", "rounded")
_POINTERS = (*_TABLES, "states", "hidden", *_SCRATCH, "seen", "places")
_FIELDS = (*_POINTERS, "rows", "start", "n_layers", "capacity", "n_heads", "n_kv_heads", "d", "size", "inner")
_MOST_FIELDS = 12  # of a product or an attention


class CompiledLayers:
    """The layers of a model with one cache."""

    def __init__(
        self,
        run: Function,
        layers: Sequence[Sequence[int]],
        norms: tuple[torch.Tensor, torch.Tensor],
        turns: tuple[torch.Tensor, torch.Tensor],
        sizes: tuple[int, ...],
    ) -> None:
        """``layers``: of each what ``_COLUMNS`` name. ``norms``: the final weight, and what is added to a row's sum of
        squares. ``turns``: the rotary tables [positions, 1, d]. ``sizes``: the last of ``_FIELDS``, from capacity on.
        """
        self._run, self._layers, self._sizes = run, torch.tensor(layers), sizes
        self._tables = (self._layers, *norms, *turns)
        self._tables_at = [table.data_ptr() for table in self._tables]
        _, n_heads, n_kv_heads, d, self._size, inner = sizes
        queries, widest = n_heads * d, max(n_heads * d, self._size, inner)
        heads = queries + 2 * n_kv_heads * d
        self._scratch = (self._size, heads, queries, self._size, inner, inner, widest)
        self._work = len(layers) * (self._size * (heads + queries) + 3 * self._size * inner)

    def __call__(
        self, x: torch.Tensor, start: int, kept_layers: Sequence[int], seen: torch.Tensor, places: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Of rows with the embeddings ``x`` [n, size], which come into the cache at ``start``: the final norm's output,
        and the hidden states of ``kept_layers`` (as in CachedModel), each [n, size]. ``seen``, ``places``: as
        :meth:`AttentionKernel.attend` takes them; a row's position is the number of keys that it sees, less one.
        """
        n, n_layers = x.shape[0], len(self._layers)
        states = torch.empty(n_layers + 2, n, self._size, dtype=torch.float32)  # before each layer, after all; normed
        states[0], hidden = x, states[-1]
        scratch = torch.empty(n * sum(self._scratch), dtype=torch.float32)
        at, pointers = scratch.data_ptr(), [states.data_ptr(), hidden.data_ptr()]
        for size in self._scratch:
            pointers.append(at)
            at += scratch.itemsize * n * size
        pointers += seen.data_ptr(), places.data_ptr()
        fields = (*self._tables_at, *pointers, n, start, n_layers, *self._sizes)
        self._run(*fields, parts=n * self._size, work=n * self._work)
        kept = (layer % (n_layers + 1) for layer in kept_layers)
        return hidden, tuple(hidden if layer == n_layers else states[layer] for layer in kept)


@cache
def layers_function(product: Product, attention: AttentionKernel) -> Function | None:
    """The function of layers whose five matrices are packed for ``product``."""

    def make(cpu: Cpu) -> Function:
        return load(LayersWriter(cpu.triple, find_openmp() is not None, product, attention), cpu)["run"]

    return compiled(make, lambda made: True)  # a model compares it with its own layers


class LayersWriter(Writer):
    """``run`` does what ``LeanModel._run_blocks`` does."""

    def __init__(self, triple: str, shared: bool, product: Product, attention: AttentionKernel) -> None:
        super().__init__(triple, shared)
        self.multiply, self.store, self.attend = (
            self.outside(function) for function in (product.function, *attention.functions)
        )
        self._run()

    def _run(self) -> None:
        b, given = self.entry("run", _FIELDS, _POINTERS)
        self.fields = self.room(b, self.long, self.long(_MOST_FIELDS), 8)
        rows, n = self.mine(b, given["rows"]), b.mul(given["rows"], given["size"])
        with self.loop(b, self.long(0), given["n_layers"], 1, []) as (layer, _):
            row = self.at(b, given["layers"], b.mul(layer, self.long(len(_COLUMNS))), self.long)
            columns = (self.at(b, row, self.long(i), self.long) for i in range(len(_COLUMNS)))
            of = {name: b.load(at, typ=self.long) for name, at in zip(_COLUMNS, columns)}
            of |= {name: b.inttoptr(of[name], self.pointer) for name in NORMS}
            x = self.at(b, given["states"], b.mul(layer, n), self.single)
            self._norm(b, given, rows, x, of["attention_norm"], "normed")
            self._product(b, given, of, "qkv", given["normed"], given["heads"])
            self._turn(b, given, rows)
            self._see(b, given, of)
            self._product(b, given, of, "out", given["attended"], given["middle"])
            self._add(b, given, rows, x, given["middle"])
            self._norm(b, given, rows, given["middle"], of["mlp_norm"], "normed")
            self._product(b, given, of, "gate", given["normed"], given["gate"])
            self._product(b, given, of, "up", given["normed"], given["up"])
            self._gate(b, given)
            after = self.at(b, x, n, self.single)
            self._product(b, given, of, "down", given["gate"], after)
            self._add(b, given, rows, given["middle"], after)
        last = self.at(b, given["states"], b.mul(given["n_layers"], n), self.single)
        self._norm(b, given, rows, last, given["final_norm"], "hidden")
        b.ret_void()

    def _call(self, b: Any, function: Any, *fields: Any) -> None:
        for i, field in enumerate(fields):
            b.store(field, self.at(b, self.fields, self.long(i), self.long))
        b.call(function, [self.fields])

    def _product(self, b: Any, given: dict[str, Any], of: dict[str, Any], name: str, x: Any, y: Any) -> None:
        weights, scales, steps, blocks = (of[f"{name}_{part}"] for part in _MATRIX)
        self._call(b, self.multiply, x, weights, y, scales, given["rounded"], steps, given["rows"], blocks)
        self.wait(b)

    def _see(self, b: Any, given: dict[str, Any], of: dict[str, Any]) -> None:
        """The attention. Every thread stores all keys and values, the same ones."""
        held = given["heads"], of["keys"], of["values"]
        sizes = [given[name] for name in ("rows", "start", "capacity", "n_heads", "n_kv_heads", "d")]
        self._call(b, self.store, *held, *[self.long(0)] * 3, *sizes)
        self._call(b, self.attend, *held, given["attended"], given["seen"], given["places"], *sizes)
        self.wait(b)

    def _norm(self, b: Any, given: dict[str, Any], rows: Any, x: Any, weight: Any, to: str) -> None:
        """x / sqrt(sum of squares + epsilon) * weight."""
        size, epsilon = given["size"], self.number(b, given["epsilon"], self.long(0))
        with self.loop(b, rows[0], rows[1], 1, []) as (row, _):
            first, sums = b.mul(row, size), [self.zero]
            with self.loop(b, self.long(0), size, LANES, sums) as (i, values):
                number = self.vector_at(b, x, b.add(first, i))
                values[0] = b.call(self.fma, [number, number, values[0]])
            length = b.call(self.root, [b.fadd(self.sum_of(b, sums[0]), epsilon)])
            scale = self.everywhere(b, b.fdiv(self.ir.Constant(self.single, 1.0), length))
            with self.loop(b, self.long(0), size, LANES, []) as (i, _):
                scaled = b.fmul(self.vector_at(b, x, b.add(first, i)), scale)
                self.put(b, b.fmul(scaled, self.vector_at(b, weight, i)), given[to], b.add(first, i))
        self.wait(b)

    def _add(self, b: Any, given: dict[str, Any], rows: Any, x: Any, to: Any) -> None:
        """``to`` += x, of this thread's rows, which it reads next."""
        first, end = (b.mul(row, given["size"]) for row in rows)
        with self.loop(b, first, end, LANES, []) as (i, _):
            self.put(b, b.fadd(self.vector_at(b, to, i), self.vector_at(b, x, i)), to, i)

    def _turn(self, b: Any, given: dict[str, Any], rows: Any) -> None:
        """The rotation of queries and keys: t * cos + swap(t) * sin, with the halves of t swapped."""
        d, n_turned = given["d"], b.add(given["n_heads"], given["n_kv_heads"])
        half, width = b.sdiv(d, self.long(2)), b.add(n_turned, given["n_kv_heads"])
        with self.loop(b, rows[0], rows[1], 1, []) as (row, _):
            seen = self.at(b, given["seen"], b.mul(row, self.long(4)), self.long)
            trunk, path, last = (b.load(self.at(b, seen, self.long(i), self.long), typ=self.long) for i in range(3))
            position = b.sub(b.add(trunk, b.sub(last, path)), self.long(1))
            cos, sin = (self.at(b, given[name], b.mul(position, d), self.single) for name in ("cos", "sin"))
            with self.loop(b, self.long(0), n_turned, 1, []) as (head, _):
                t = self.at(b, given["heads"], b.mul(b.add(b.mul(row, width), head), d), self.single)
                with self.loop(b, self.long(0), half, LANES, []) as (i, _):
                    places = i, b.add(i, half)
                    one, other = (self.vector_at(b, t, at) for at in places)
                    for at, straight, swapped in zip(places, (one, other), (other, one)):
                        turned = b.fmul(straight, self.vector_at(b, cos, at))
                        self.put(b, b.call(self.fma, [swapped, self.vector_at(b, sin, at), turned]), t, at)
        self.wait(b)

    def _gate(self, b: Any, given: dict[str, Any]) -> None:
        """gate = silu(gate) * up. With e = exp(-|x|), the sigmoid is 1 / (1 + e), or e / (1 + e) below 0."""
        vectors = b.sdiv(b.mul(given["rows"], given["inner"]), self.long(LANES))
        first, end = (b.mul(at, self.long(LANES)) for at in self.mine(b, vectors))
        one = self.constant(1.0)
        with self.loop(b, first, end, LANES, []) as (i, _):
            x = self.vector_at(b, given["gate"], i)
            below = b.fcmp_ordered("<", x, self.zero)
            e = self.exp(b, b.select(below, x, b.fsub(self.zero, x)))
            sigmoid = b.fdiv(b.select(below, e, one), b.fadd(one, e))
            product = b.fmul(b.fmul(x, sigmoid), self.vector_at(b, given["up"], i))
            self.put(b, product, given["gate"], i)
        self.wait(b)
