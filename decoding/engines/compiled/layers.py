"""All layers of a pass in one call: norms, biases, rotation, residual sums and the gate of Llama-shaped blocks, between
the compiled products and attention; then the head. Another call makes of hidden states what a draft adds to a token.

One by one these are some twenty small operations a layer, which torch takes longer to begin than to do. Rows are
treated separately, so that a row's bits do not depend on the others. Threads share the products and the attention, and
then wait for each other; each does all other steps itself, writing what the others write.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from . import Function, compiled, load
from .attention import SEEN, AttentionKernel, chains
from .products import Product
from .readout import JUDGED, Reading, Readout, readout
from .writer import LANES, Cpu, Writer

PRODUCTS = ("qkv", "out", "gate", "up", "down")  # of a block
NORMS = ("attention_norm", "mlp_norm")
_MATRIX = ("weights", "scales", "steps", "blocks", "bias")  # of a product; without a bias 0
_COLUMNS = (*NORMS, "qk_norm", "keys", "values", *(f"{product}_{part}" for product in PRODUCTS for part in _MATRIX))
_HEAD = tuple(f"head_{part}" for part in _MATRIX)
_TABLES = ("layers", "final_norm", "epsilon", "cos", "sin")
_SCRATCH = ("normed", "heads", "turned", "attended", "product", "middle", "gate", "up", "arranged")
_READ = ("logits", "more_rows", "more_logits", "token", "judged")
_POINTERS = (*_TABLES, "table", "added", "states", "hidden", *_SCRATCH, "seen", "places", *_READ)
_SIZES = ("capacity", "n_heads", "n_kv_heads", "d", "size", "inner")
_FIELDS = (*_POINTERS, "adds", "judges", "rows", "last", "n_more", "start", *_HEAD, "n_layers", *_SIZES)  # and ids
_PROJECTED = ("x", "scale", "epsilon", "scaled", "arranged", "y")
_OF_PROJECTION = (*_PROJECTED, "rows", *(f"matrix_{part}" for part in _MATRIX), "parts", "size")
_MOST_FIELDS = 12  # of a product or an attention
_NO_HEAD = (0,) * len(_MATRIX)
_KEPT_ROWS = 8  # passes of up to so many rows write where the last one wrote: allocating takes longer than a norm


class Functions(NamedTuple):
    """``run``: all layers and the head. ``project``: see :class:`CompiledProjection`."""

    run: Function
    project: Function


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
    and ``_SCRATCH`` begin.
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
        """``layers``: of each what ``_COLUMNS`` name; ``qk_norm`` [Hq + Hkv, d], or 0. ``norms``: the final weight, and
        what is added to the sum of squares of a row, and of a head. ``turns``: the rotary tables [positions, 1, d].
        ``sizes``: what ``_SIZES`` name. ``head``: what ``_MATRIX`` name of the head, or None if it is not packed for
        the same product; ``vocab``: its outputs.
        """
        self._run, self._layers = run, torch.tensor(layers)
        self._fixed = (*(head or _NO_HEAD), len(layers), *sizes)
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
    """Hidden states of ``parts`` layers, x [n, parts, size] -> [n, out] float32: the product by a matrix of what each
    part, divided by its length, is times its scale. ``parts`` 0: of one layer's, [n, size], which are not divided.
    """

    def __init__(self, project: Function, matrix: tuple[int, ...], n_out: int, scale: torch.Tensor, parts: int) -> None:
        """``matrix``: what ``_MATRIX`` name. ``scale`` [parts, size], or [size]."""
        self._project, self._n_out, self._scale = project, n_out, scale.float().contiguous()
        self._epsilon = torch.tensor([1e-12], dtype=torch.float32)
        self._tables_at = self._scale.data_ptr(), self._epsilon.data_ptr()
        self._fixed, self._inputs = (*matrix, parts, scale.shape[-1]), scale.numel()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        n, inputs, single = x.shape[0], self._inputs, torch.float32
        x, y = x.to(single).contiguous(), torch.empty(n, self._n_out, dtype=single)
        scratch = torch.empty(2 * n * inputs, dtype=single)
        at = scratch.data_ptr()
        pointers = x.data_ptr(), *self._tables_at, at, at + single.itemsize * n * inputs, y.data_ptr()
        self._project(*pointers, n, *self._fixed, parts=self._n_out, work=n * inputs * self._n_out)
        return y


@compiled(lambda *_: True)  # a model compares it with its own layers
def layers_functions(cpu: Cpu, product: Product, attention: AttentionKernel) -> Functions | None:
    """The functions of layers, and of projections, whose matrices are packed for ``product``."""
    read = readout()
    return None if read is None else Functions(**load(LayersWriter(cpu, product, attention, read), cpu))


class LayersWriter(Writer):
    """``run`` does what ``LeanModel._run_blocks`` does, and the head; ``project`` what ``Projections`` do."""

    def __init__(self, cpu: Cpu, product: Product, attention: AttentionKernel, read: Readout) -> None:
        super().__init__(cpu)
        functions = [self.outside(one) for one in (product.function, *attention.functions, *read.functions)]
        self.multiply, self.store, self.attend, self.choose, self.judge = functions
        self.outputs = product.lanes  # of a block
        self._run()
        self._project()

    def _run(self) -> None:
        b, given = self.entry("run", _FIELDS, _POINTERS)
        self.given, n = given, b.mul(given["rows"], given["size"])
        self.fields = self.room(b, self.long, self.long(_MOST_FIELDS), 8)
        self.head = self.room(b, self.single, given["d"], 4)
        self._begin(b, self.at(b, b.function.args[0], self.long(len(_FIELDS)), self.long))
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
        self._score(b)
        b.ret_void()

    def _begin(self, b: Any, ids: Any) -> None:
        """The states before the first layer."""
        given, size = self.given, self.given["size"]
        with self._rows(b) as row:
            token = b.load(self.at(b, ids, row, self.long), typ=self.long)
            embedding = self.at(b, given["table"], b.mul(token, size), self.single)
            added, to = (self.at(b, given[name], b.mul(row, size), self.single) for name in ("added", "states"))
            with b.if_else(b.icmp_signed("!=", given["adds"], self.long(0))) as (adds, plain):
                with adds:
                    self._sum(b, embedding, added, to, size)
                with plain, self.loop(b, self.long(0), size, LANES, []) as (i, _):
                    self.put(b, self.vector_at(b, embedding, i), to, i)

    def _score(self, b: Any) -> None:
        """Logits of the last rows, and this thread's part of those of further rows of the head; then one is read."""
        given, size, last = self.given, self.given["size"], self.given["last"]
        hidden = self.at(b, given["hidden"], b.mul(b.sub(given["rows"], last), size), self.single)
        with b.if_then(b.icmp_signed("!=", given["head_blocks"], self.long(0))):
            self._product(b, given, "head", hidden, given["logits"], last)
        first, end = self.mine(b, given["n_more"])
        with self._rows(b, last) as row, self.loop(b, first, end, 1, []) as (token, _):
            x = self.at(b, hidden, b.mul(row, size), self.single)
            of_token = self.at(b, given["more_rows"], b.mul(token, size), self.single)
            sums = [self.zero]
            with self.loop(b, self.long(0), size, LANES, sums) as (i, values):
                values[0] = b.call(self.fma, [self.vector_at(b, x, i), self.vector_at(b, of_token, i), values[0]])
            at = b.add(b.mul(row, given["n_more"]), token)
            b.store(self.sum_of(b, sums[0]), self.at(b, given["more_logits"], at, self.single))
        with b.if_then(b.icmp_signed("!=", given["judges"], self.long(0))):
            self.wait(b)
            with self.loop(b, *self.mine(b, self.long(1)), 1, []):  # one thread
                row = given["logits"], given["judged"], given["token"], b.add(given["judges"], given["n_more"])
                self._call(b, self.choose, *row)
                self._call(b, self.judge, *row)

    def _project(self) -> None:
        b, given = self.entry("project", _OF_PROJECTION, _PROJECTED)
        self.given, size = given, given["size"]
        self.fields = self.room(b, self.long, self.long(_MOST_FIELDS), 8)
        normalised = b.icmp_signed("!=", given["parts"], self.long(0))
        parts = b.select(normalised, given["parts"], self.long(1))
        with self._rows(b) as row, self.loop(b, self.long(0), parts, 1, []) as (part, _):
            of_scale = self.at(b, given["scale"], b.mul(part, size), self.single)
            first = b.mul(b.add(b.mul(row, parts), part), size)
            x, to = (self.at(b, given[name], first, self.single) for name in ("x", "scaled"))
            with b.if_else(normalised) as (divided, plain):
                with divided:
                    self._normalise(b, x, of_scale, to, size, 0)
                with plain, self.loop(b, self.long(0), size, LANES, []) as (i, _):
                    self.put(b, b.fmul(self.vector_at(b, x, i), self.vector_at(b, of_scale, i)), to, i)
        self._product(b, given, "matrix", given["scaled"], given["y"])
        b.ret_void()

    def _call(self, b: Any, function: Any, *fields: Any) -> None:
        for i, field in enumerate(fields):
            b.store(field, self.at(b, self.fields, self.long(i), self.long))
        b.call(function, [self.fields])

    @contextmanager
    def _rows(self, b: Any, rows: Any = None) -> Iterator[Any]:
        """Code for each of ``rows``, or of all. Gives its index."""
        with self.loop(b, self.long(0), self.given["rows"] if rows is None else rows, 1, []) as (row, _):
            yield row

    @contextmanager
    def _my_outputs(self, b: Any, blocks: Any, rows: Any = None) -> Iterator[Any]:
        """Code for LANES of the outputs that this thread computes of a product, of each row. Gives their place."""
        first, end = (b.mul(block, self.long(self.outputs)) for block in self.mine(b, blocks))
        with self._rows(b, rows) as row:
            before = b.mul(row, b.mul(blocks, self.long(self.outputs)))
            with self.loop(b, b.add(before, first), b.add(before, end), LANES, []) as (i, _):
                yield i, b.sub(i, before)

    def _product(self, b: Any, of: dict[str, Any], name: str, x: Any, y: Any, rows: Any = None) -> None:
        weights, scales, steps, blocks, bias = (of[f"{name}_{part}"] for part in _MATRIX)
        n = self.given["rows"] if rows is None else rows
        self._call(b, self.multiply, x, weights, y, scales, self.given["arranged"], steps, n, blocks)
        with b.if_then(b.icmp_signed("!=", bias, self.long(0))), self._my_outputs(b, blocks, n) as (i, output):
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
