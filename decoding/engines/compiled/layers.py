"""All layers of a pass in one call: norms, biases, rotation, residual sums and the gate of Llama-shaped blocks, between
the compiled products and attention; then the head. Another call makes of hidden states what a draft adds to a token.

One by one these are some twenty small operations a layer, which torch takes longer to begin than to do. Rows are
treated separately, so that a row's bits do not depend on the others. Threads share the products and the attention, and
then wait for each other; each does all other steps itself, writing what the others write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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
        given, arguments = self.entry("run", _FIELDS, _POINTERS)
        self.given, n = given, given["rows"] * given["size"]
        self.fields = self.room(self.long, _MOST_FIELDS, 8)
        self.head = self.room(self.single, given["d"], 4)
        self._begin(arguments + len(_FIELDS))
        with self.each(given["n_layers"]) as layer:
            row = given["layers"].of(self.long) + layer * len(COLUMNS)
            of = {name: row[i] for i, name in enumerate(COLUMNS)}
            x = given["states"] + layer * n
            self._norm(x, of["attention_norm"].pointer, given["normed"])
            self._product(of, "qkv", given["normed"], given["heads"])
            self.wait()
            self._turn(of["qk_norm"])
            self._see(of)
            self.wait()
            self._product(of, "out", given["attended"], given["product"])
            self.wait()
            self._sum(x, given["product"], given["middle"], n)
            self._norm(given["middle"], of["mlp_norm"].pointer, given["normed"])
            self._product(of, "gate", given["normed"], given["gate"])
            self._product(of, "up", given["normed"], given["up"])
            self._gate(of["up_blocks"])
            self.wait()
            self._product(of, "down", given["gate"], given["product"])
            self.wait()
            self._sum(given["middle"], given["product"], x + n, n)
        self._norm(given["states"] + given["n_layers"] * n, given["final_norm"], given["hidden"])
        self._score()
        self.b.ret_void()

    def _begin(self, ids: Any) -> None:
        """The states before the first layer."""
        given, size = self.given, self.given["size"]
        with self._rows() as row:
            embedding = given["table"] + ids[row] * size
            added, to = (given[name] + row * size for name in ("added", "states"))
            with self.b.if_else(given["adds"].differs(0).raw) as (adds, plain):
                with adds:
                    self._sum(embedding, added, to, size)
                with plain, self.each(size, LANES) as i:
                    to.put(embedding.vector(i), i)

    def _score(self) -> None:
        """Logits of the last rows, and this thread's part of those of further rows of the head; then one is read."""
        given, size, last = self.given, self.given["size"], self.given["last"]
        hidden = given["hidden"] + (given["rows"] - last) * size
        with self.b.if_then(given["head_blocks"].differs(0).raw):
            self._logits(hidden, last)
        first, end = self.mine(given["n_more"])
        with self._rows(last) as row, self.each(end, 1, first) as token:
            x, of_token, sums = hidden + row * size, given["more_rows"] + token * size, [self.zero]
            with self.loop(0, size, LANES, sums) as (i, values):
                values[0] = self.fma(x.vector(i), of_token.vector(i), values[0])
            given["more_logits"][row * given["n_more"] + token] = self.sum_of(sums[0])
        with self.b.if_then(given["judges"].differs(0).raw):
            self.wait()
            first, end = self.mine(1)
            with self.each(end, 1, first):  # one thread
                row = given["logits"], given["judged"], given["token"], given["judges"] + given["n_more"]
                self._call(self.choose, *row)
                self._call(self.judge, *row)

    def _logits(self, hidden: Any, last: Any) -> None:
        given, logits = self.given, self.given["logits"]
        with self.b.if_else(given["down_blocks"].differs(0).raw) as (screened, whole):
            with screened:
                self._product(given, "down", hidden, given["normed"], last)
                self.wait()
                self._product(given, "head", given["normed"], logits, last)
                self.wait()
                n = given["head_blocks"] * self.outputs
                self._call(self.refine, hidden, logits, given["levels"], given["scales"], last, n, given["size"])
            with whole:
                self._product(given, "head", hidden, logits, last)

    def _project(self) -> None:
        given, arguments = self.entry("project", _OF_PROJECTION, _PROJECTED)
        self.given, size = given, given["size"]
        self.fields = self.room(self.long, _MOST_FIELDS, 8)
        normalised = given["parts"].differs(0)
        parts, states = self.select(normalised, given["parts"], 1), arguments + len(_OF_PROJECTION)
        with self.each(parts) as part, self._rows() as row:
            x, scale = states[part].pointer + row * size, given["scale"] + part * size
            to = given["scaled"] + (row * parts + part) * size
            with self.b.if_else(normalised.raw) as (divided, plain):
                with divided:
                    self._normalise(x, scale, to, size, 0)
                with plain, self.each(size, LANES) as i:
                    to.put(x.vector(i) * scale.vector(i), i)
        self._product(given, "matrix", given["scaled"], given["y"])
        self.b.ret_void()

    def _call(self, function: Any, *fields: Any) -> None:
        for i, field in enumerate(fields):
            self.fields[i] = field
        function(self.fields)

    def _rows(self, rows: Any = None) -> AbstractContextManager[Any]:
        """Code for each of ``rows``, or of all. Gives its index."""
        return self.each(self.given["rows"] if rows is None else rows)

    @contextmanager
    def _my_outputs(self, blocks: Any, rows: Any = None) -> Iterator[Any]:
        """Code for LANES of the outputs that this thread computes of a product, of each row. Gives their place."""
        first, end = (block * self.outputs for block in self.mine(blocks))
        with self._rows(rows) as row:
            before = row * (blocks * self.outputs)
            with self.each(first=before + first, end=before + end, step=LANES) as i:
                yield i, i - before

    def _product(self, of: dict[str, Any], name: str, x: Any, y: Any, rows: Any = None) -> None:
        weights, scales, steps, blocks, bias = (of[f"{name}_{part}"] for part in MATRIX)
        n = self.given["rows"] if rows is None else rows
        self._call(self.multiply, x, weights, y, scales, self.given["arranged"], steps, n, blocks)
        with self.b.if_then(bias.differs(0).raw), self._my_outputs(blocks, n) as (i, output):
            more = bias.pointer.vector(output)
            y.put(y.vector(i) + more, i)

    def _see(self, of: dict[str, Any]) -> None:
        held = self.given["turned"], of["keys"], of["values"]
        sizes = [self.given[name] for name in ("rows", "start", "capacity", "n_heads", "n_kv_heads", "d")]
        self._call(self.store, *held, 0, 0, 0, *sizes)
        self._call(self.attend, *held, *(self.given[name] for name in ("attended", "seen", "places")), *sizes)

    def _sum(self, x: Any, y: Any, to: Any, n: Any) -> None:
        with self.each(n, LANES) as i:
            to.put(x.vector(i) + y.vector(i), i)

    def _norm(self, x: Any, weight: Any, to: Any) -> None:
        size = self.given["size"]
        with self._rows() as row:
            self._normalise(x + row * size, weight, to + row * size, size, 0)

    def _normalise(self, x: Any, weight: Any, to: Any, size: Any, epsilon: int) -> None:
        """``to`` = x / sqrt(sum of squares + epsilon) * weight, of ``size`` numbers."""
        sums = [self.zero]
        with self.loop(0, size, LANES, sums) as (i, values):
            number = x.vector(i)
            values[0] = self.fma(number, number, values[0])
        more = self.given["epsilon"][epsilon]
        length = self.root(self.sum_of(sums[0]) + more)
        scale = self.everywhere(self.constant(1.0, self.single) / length)
        with self.each(size, LANES) as i:
            to.put(x.vector(i) * scale * weight.vector(i), i)

    def _turn(self, qk_norm: Any) -> None:
        """``turned``: ``heads`` with queries and keys normalised, if they are, and rotated by their row's position."""
        given, d, width = self.given, self.given["d"], self.given["n_heads"] + self.given["n_kv_heads"]
        values = given["n_kv_heads"] * d
        with self._rows() as row:
            seen = given["seen"].of(self.long) + row * SEEN
            trunk, path, last = (seen[i] for i in range(3))
            position = trunk + (last - path) - 1
            turns = [given[name] + position * d for name in ("cos", "sin")]
            first = row * (width * d + values)
            with self.each(width) as head:
                t, to = (given[name] + (first + head * d) for name in ("heads", "turned"))
                normalised = qk_norm.differs(0)
                with self.b.if_then(normalised.raw):
                    self._normalise(t, qk_norm.pointer + head * d, self.head, d, 1)
                self._rotate(self.select(normalised, self.head, t), turns, to)
            with self.each(values, LANES) as i:
                at = first + width * d + i
                given["turned"].put(given["heads"].vector(at), at)

    def _rotate(self, t: Any, turns: list[Any], to: Any) -> None:
        """``to`` = t * cos + swap(t) * sin, with the halves of t swapped."""
        half = self.given["d"] // 2
        with self.each(half, LANES) as i:
            places = i, i + half
            one, other = (t.vector(at) for at in places)
            for at, straight, swapped in zip(places, (one, other), (other, one)):
                cos, sin = (table.vector(at) for table in turns)
                to.put(self.fma(swapped, sin, straight * cos), at)

    def _gate(self, blocks: Any) -> None:
        """gate = silu(gate) * up. With e = exp(-|x|), the sigmoid is 1 / (1 + e), or e / (1 + e) below 0."""
        gate, up, one = self.given["gate"], self.given["up"], self.constant(1.0)
        with self._my_outputs(blocks) as (i, _):
            x = gate.vector(i)
            below = x < 0.0
            e = self.exp(self.select(below, x, self.zero - x))
            sigmoid = self.select(below, e, one) / (one + e)
            gate.put(x * sigmoid * up.vector(i), i)
