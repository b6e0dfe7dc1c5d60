"""All layers of a pass in one call: norms, biases, rotation, residual sums and the gate of Llama-shaped blocks, between
the compiled products and attention; then the head. Another call makes of hidden states what a draft adds to a token.

One by one these are some twenty small operations a layer, which torch takes longer to begin than to do. Rows are
treated separately, so that a row's bits do not depend on the others. Threads share the products and the attention, and
then wait for each other; each does all other steps itself, writing what the others write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from . import Function, compiled, load
from .attention import SEEN, AttentionKernel
from .products import Product
from .readout import Readout, Refinement, readout, refinement
from .writer import LANES, Cpu, Writer

PRODUCTS = ("qkv", "out", "gate", "up", "down")  # of a block
NORMS = ("attention_norm", "mlp_norm")
MATRIX = ("weights", "scales", "steps", "blocks", "bias")  # of a product; without a bias 0
COLUMNS = (*NORMS, "qk_norm", "keys", "values", *(f"{product}_{part}" for product in PRODUCTS for part in MATRIX))
SCREEN = (*(f"down_{part}" for part in MATRIX), "levels", "scales")  # see ScreenedLinear; zeros for a head that is not
HEAD = (*(f"head_{part}" for part in MATRIX), *SCREEN)
_TABLES = ("layers", "final_norm", "epsilon", "cos", "sin")
SCRATCH = ("normed", "heads", "turned", "attended", "product", "middle", "gate", "up", "arranged")
_READ = ("logits", "more_rows", "more_logits", "token", "judged")
_POINTERS = (*_TABLES, "table", "added", "states", "hidden", *SCRATCH, "seen", "places", *_READ)
SIZES = ("capacity", "n_heads", "n_kv_heads", "d", "size", "inner")
_FIELDS = (*_POINTERS, "adds", "judges", "rows", "last", "n_more", "start", *HEAD, "n_layers", *SIZES)  # and ids
_PROJECTED = ("scale", "epsilon", "scaled", "arranged", "y")
_OF_PROJECTION = (*_PROJECTED, "rows", *(f"matrix_{part}" for part in MATRIX), "parts", "size")  # and the states
_MOST_FIELDS = 12  # of a product or an attention


class Functions(NamedTuple):
    """``run``: all layers and the head. ``project``: a draft's projection. Called in ../joined.py."""

    run: Function
    project: Function


@compiled(lambda *_: True)  # a model compares it with its own layers
def layers_functions(cpu: Cpu, product: Product, attention: AttentionKernel) -> Functions | None:
    """The functions of layers, and of projections, whose matrices are packed for ``product``."""
    read, refine = readout(), refinement()
    if read is None or refine is None:
        return None
    return Functions(**load(LayersWriter(cpu, product, attention, read, refine), cpu))


class LayersWriter(Writer):
    """``run`` does what ``LeanModel._run_blocks`` does, and the head; ``project`` what ``Projections`` do."""

    def __init__(
        self, cpu: Cpu, product: Product, attention: AttentionKernel, read: Readout, refine: Refinement
    ) -> None:
        super().__init__(cpu)
        functions = product.function, *attention.functions, *read.functions, refine.function
        compiled_before = [self.outside(one) for one in functions]
        self.multiply, self.store, self.attend, self.choose, self.judge, self.refine = compiled_before
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
            row = self.at(b, given["layers"], b.mul(layer, self.long(len(COLUMNS))), self.long)
            columns = (self.at(b, row, self.long(i), self.long) for i in range(len(COLUMNS)))
            of = {name: b.load(at, typ=self.long) for name, at in zip(COLUMNS, columns)}
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
            self._logits(b, hidden, last)
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

    def _logits(self, b: Any, hidden: Any, last: Any) -> None:
        given, logits = self.given, self.given["logits"]
        with b.if_else(b.icmp_signed("!=", given["down_blocks"], self.long(0))) as (screened, whole):
            with screened:
                self._product(b, given, "down", hidden, given["normed"], last)
                self.wait(b)
                self._product(b, given, "head", given["normed"], logits, last)
                self.wait(b)
                n = b.mul(given["head_blocks"], self.long(self.outputs))
                self._call(b, self.refine, hidden, logits, given["levels"], given["scales"], last, n, given["size"])
            with whole:
                self._product(b, given, "head", hidden, logits, last)

    def _project(self) -> None:
        b, given = self.entry("project", _OF_PROJECTION, _PROJECTED)
        self.given, size = given, given["size"]
        self.fields = self.room(b, self.long, self.long(_MOST_FIELDS), 8)
        normalised = b.icmp_signed("!=", given["parts"], self.long(0))
        parts = b.select(normalised, given["parts"], self.long(1))
        states = self.at(b, b.function.args[0], self.long(len(_OF_PROJECTION)), self.long)
        with self.loop(b, self.long(0), parts, 1, []) as (part, _), self._rows(b) as row:
            of_part = b.inttoptr(b.load(self.at(b, states, part, self.long), typ=self.long), self.pointer)
            of_scale = self.at(b, given["scale"], b.mul(part, size), self.single)
            first = b.mul(b.add(b.mul(row, parts), part), size)
            x, to = self.at(b, of_part, b.mul(row, size), self.single), self.at(b, given["scaled"], first, self.single)
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
        weights, scales, steps, blocks, bias = (of[f"{name}_{part}"] for part in MATRIX)
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
