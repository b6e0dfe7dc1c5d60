"""All layers of a pass in one call: norms, biases, rotation, residual sums and the gate of Llama-shaped blocks, between
the compiled products and attention.

One by one these are some twenty small operations a layer, which torch takes longer to begin than to do. Rows are
treated separately, so that a row's bits do not depend on the others. Threads share the products and the attention, and
then wait for each other; each does all other steps itself, writing what the others write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from . import Cpu, Function, compiled, find_openmp, load
from .attention import SEEN, AttentionKernel
from .products import Product
from .writer import LANES, Writer

PRODUCTS = ("qkv", "out", "gate", "up", "down")  # of a block
NORMS = ("attention_norm", "mlp_norm")
_MATRIX = ("weights", "scales", "steps", "blocks", "bias")  # of a product; without a bias 0
_COLUMNS = (*NORMS, "qk_norm", "keys", "values", *(f"{product}_{part}" for product in PRODUCTS for part in _MATRIX))
_TABLES = ("layers", "final_norm", "epsilon", "cos", "sin")
_SCRATCH = ("normed", "heads", "turned", "attended", "product", "middle", "gate", "up", "rounded")
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
        """``layers``: of each what ``_COLUMNS`` name; ``qk_norm`` [Hq + Hkv, d], or 0. ``norms``: the final weight, and
        what is added to the sum of squares of a row, and of a head. ``turns``: the rotary tables [positions, 1, d].
        ``sizes``: the last of ``_FIELDS``, from capacity on.
        """
        self._run, self._layers, self._sizes = run, torch.tensor(layers), sizes
        self._tables = (self._layers, *norms, *turns)
        self._tables_at = [table.data_ptr() for table in self._tables]
        _, n_heads, n_kv_heads, d, self._size, inner = sizes
        queries, widest = n_heads * d, max(n_heads * d, self._size, inner)
        heads = queries + 2 * n_kv_heads * d
        self._scratch = (self._size, heads, heads, queries, self._size, self._size, inner, inner, widest)
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
        functions = (product.function, *attention.functions)
        self.multiply, self.store, self.attend = (self.outside(function) for function in functions)
        self.outputs = product.lanes  # of a block
        self._run()

    def _run(self) -> None:
        b, given = self.entry("run", _FIELDS, _POINTERS)
        self.given, n = given, b.mul(given["rows"], given["size"])
        self.fields = self.room(b, self.long, self.long(_MOST_FIELDS), 8)
        self.head = self.room(b, self.single, given["d"], 4)
        with self.loop(b, self.long(0), given["n_layers"], 1, []) as (layer, _):
            row = self.at(b, given["layers"], b.mul(layer, self.long(len(_COLUMNS))), self.long)
            columns = (self.at(b, row, self.long(i), self.long) for i in range(len(_COLUMNS)))
            of = {name: b.load(at, typ=self.long) for name, at in zip(_COLUMNS, columns)}
            x = self.at(b, given["states"], b.mul(layer, n), self.single)
            self._norm(b, x, b.inttoptr(of["attention_norm"], self.pointer), given["normed"])
            self._product(b, of, "qkv", given["normed"], given["heads"])
            self.wait(b)
            self._turn(b, of["qk_norm"])
            self._see(b, of)
            self.wait(b)
            self._product(b, of, "out", given["attended"], given["product"])
            self.wait(b)
            self._sum(b, x, given["product"], given["middle"], n)
            self._norm(b, given["middle"], b.inttoptr(of["mlp_norm"], self.pointer), given["normed"])
            self._product(b, of, "gate", given["normed"], given["gate"])
            self._product(b, of, "up", given["normed"], given["up"])
            self._gate(b, of["up_blocks"])
            self.wait(b)
            self._product(b, of, "down", given["gate"], given["product"])
            self.wait(b)
            self._sum(b, given["middle"], given["product"], self.at(b, x, n, self.single), n)
        last = self.at(b, given["states"], b.mul(given["n_layers"], n), self.single)
        self._norm(b, last, given["final_norm"], given["hidden"])
        b.ret_void()

    def _call(self, b: Any, function: Any, *fields: Any) -> None:
        for i, field in enumerate(fields):
            b.store(field, self.at(b, self.fields, self.long(i), self.long))
        b.call(function, [self.fields])

    @contextmanager
    def _rows(self, b: Any) -> Iterator[Any]:
        """Code for each row. Gives its index."""
        with self.loop(b, self.long(0), self.given["rows"], 1, []) as (row, _):
            yield row

    @contextmanager
    def _my_outputs(self, b: Any, blocks: Any) -> Iterator[Any]:
        """Code for LANES of the outputs that this thread computes of a product, of each row. Gives their place."""
        first, end = (b.mul(block, self.long(self.outputs)) for block in self.mine(b, blocks))
        with self._rows(b) as row:
            before = b.mul(row, b.mul(blocks, self.long(self.outputs)))
            with self.loop(b, b.add(before, first), b.add(before, end), LANES, []) as (i, _):
                yield i, b.sub(i, before)

    def _product(self, b: Any, of: dict[str, Any], name: str, x: Any, y: Any) -> None:
        weights, scales, steps, blocks, bias = (of[f"{name}_{part}"] for part in _MATRIX)
        self._call(b, self.multiply, x, weights, y, scales, self.given["rounded"], steps, self.given["rows"], blocks)
        with b.if_then(b.icmp_signed("!=", bias, self.long(0))), self._my_outputs(b, blocks) as (i, output):
            more = self.vector_at(b, b.inttoptr(bias, self.pointer), output)
            self.put(b, b.fadd(self.vector_at(b, y, i), more), y, i)

    def _see(self, b: Any, of: dict[str, Any]) -> None:
        held = self.given["turned"], of["keys"], of["values"]
        sizes = [self.given[name] for name in ("rows", "start", "capacity", "n_heads", "n_kv_heads", "d")]
        self._call(b, self.store, *held, *[self.long(0)] * 3, *sizes)
        self._call(b, self.attend, *held, *(self.given[name] for name in ("attended", "seen", "places")), *sizes)

    def _sum(self, b: Any, x: Any, y: Any, to: Any, n: Any) -> None:
        with self.loop(b, self.long(0), n, LANES, []) as (i, _):
            self.put(b, b.fadd(self.vector_at(b, x, i), self.vector_at(b, y, i)), to, i)

    def _norm(self, b: Any, x: Any, weight: Any, to: Any) -> None:
        size = self.given["size"]
        with self._rows(b) as row:
            at, into = (self.at(b, one, b.mul(row, size), self.single) for one in (x, to))
            self._normalise(b, at, weight, into, size, 0)

    def _normalise(self, b: Any, x: Any, weight: Any, to: Any, size: Any, epsilon: int) -> None:
        """``to`` = x / sqrt(sum of squares + epsilon) * weight, of ``size`` numbers."""
        sums = [self.zero]
        with self.loop(b, self.long(0), size, LANES, sums) as (i, values):
            number = self.vector_at(b, x, i)
            values[0] = b.call(self.fma, [number, number, values[0]])
        more = self.number(b, self.given["epsilon"], self.long(epsilon))
        length = b.call(self.root, [b.fadd(self.sum_of(b, sums[0]), more)])
        scale = self.everywhere(b, b.fdiv(self.ir.Constant(self.single, 1.0), length))
        with self.loop(b, self.long(0), size, LANES, []) as (i, _):
            self.put(b, b.fmul(b.fmul(self.vector_at(b, x, i), scale), self.vector_at(b, weight, i)), to, i)

    def _turn(self, b: Any, qk_norm: Any) -> None:
        """``turned``: ``heads`` with queries and keys normalised, if they are, and rotated by their row's position."""
        given, d, width = self.given, self.given["d"], b.add(self.given["n_heads"], self.given["n_kv_heads"])
        values = b.mul(given["n_kv_heads"], d)
        with self._rows(b) as row:
            seen = self.at(b, given["seen"], b.mul(row, self.long(SEEN)), self.long)
            trunk, path, last = (b.load(self.at(b, seen, self.long(i), self.long), typ=self.long) for i in range(3))
            position = b.sub(b.add(trunk, b.sub(last, path)), self.long(1))
            turns = [self.at(b, given[name], b.mul(position, d), self.single) for name in ("cos", "sin")]
            first = b.mul(row, b.add(b.mul(width, d), values))
            with self.loop(b, self.long(0), width, 1, []) as (head, _):
                at = b.add(first, b.mul(head, d))
                t, to = (self.at(b, given[name], at, self.single) for name in ("heads", "turned"))
                normalised = b.icmp_signed("!=", qk_norm, self.long(0))
                with b.if_then(normalised):
                    weight = self.at(b, b.inttoptr(qk_norm, self.pointer), b.mul(head, d), self.single)
                    self._normalise(b, t, weight, self.head, d, 1)
                self._rotate(b, b.select(normalised, self.head, t), turns, to)
            with self.loop(b, self.long(0), values, LANES, []) as (i, _):
                at = b.add(b.add(first, b.mul(width, d)), i)
                self.put(b, self.vector_at(b, given["heads"], at), given["turned"], at)

    def _rotate(self, b: Any, t: Any, turns: list[Any], to: Any) -> None:
        """``to`` = t * cos + swap(t) * sin, with the halves of t swapped."""
        half = b.sdiv(self.given["d"], self.long(2))
        with self.loop(b, self.long(0), half, LANES, []) as (i, _):
            places = i, b.add(i, half)
            one, other = (self.vector_at(b, t, at) for at in places)
            for at, straight, swapped in zip(places, (one, other), (other, one)):
                cos, sin = (self.vector_at(b, table, at) for table in turns)
                self.put(b, b.call(self.fma, [swapped, sin, b.fmul(straight, cos)]), to, at)

    def _gate(self, b: Any, blocks: Any) -> None:
        """gate = silu(gate) * up. With e = exp(-|x|), the sigmoid is 1 / (1 + e), or e / (1 + e) below 0."""
        gate, up, one = self.given["gate"], self.given["up"], self.constant(1.0)
        with self._my_outputs(b, blocks) as (i, _):
            x = self.vector_at(b, gate, i)
            below = b.fcmp_ordered("<", x, self.zero)
            e = self.exp(b, b.select(below, x, b.fsub(self.zero, x)))
            sigmoid = b.fdiv(b.select(below, e, one), b.fadd(one, e))
            self.put(b, b.fmul(b.fmul(x, sigmoid), self.vector_at(b, up, i)), gate, i)
