"""Products of float32 rows by packed int8, float16, bfloat16 or float32 matrices.

y[r, o] = sum over k of x[r, k] W[o, k], added up in the order of k in every row, each step a fused multiply-add; the
sum of int8 weights is then multiplied by their output's scale. So a row's bits depend neither on the number of rows nor
on the CPU. Weights are widened in registers: one row takes about as long as memory needs to deliver them.

Where a CPU multiplies pairs of bfloat16 numbers (AVX512-BF16), rows are rounded for bfloat16 weights, too, and a step
is a pair. These are half as many steps, so that several rows take little longer than one.

A packed matrix is [blocks, steps, lanes]: a step reads the weights of one input, which meet that input of several rows.
Few rows read wide blocks one after another, which is how memory is fastest, and several narrow ones at a time, since
each sum waits for its last step; so do those of int8, as a step reads little of them. Memory is asked early: for the
next chunk of blocks, of narrow ones in several streams, evenly over the parts of more rows than an inner loop takes;
pairs that one loop takes ask for what comes soon. For a single row of larger weights the CPU reads ahead by itself.
Many rows are arranged: their numbers of an input lie together, which takes one address instead of one for each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from . import Function, compiled, load
from .writer import LANES, LINE, Cpu, Cut, Part, Writer

MOST_ROWS, MOST_OF_PAIRS = 6, 14  # of one inner loop, so that the sums stay in registers
_CHUNK = 64  # outputs that all rows meet before the next ones are read: they stay in the cache meanwhile
_FEW_ROWS, _FEW_OF_PAIRS = 3, 9  # which are not arranged, as that takes time, too
_TURN, _TURN_OF_ARRANGED = 2, 4  # steps of one turn of an inner loop
_SOON = 8192  # bytes: how far ahead pairs are asked for that one inner loop takes
_ROUNDED = 32  # numbers that are rounded together
_WHOLE = 16  # bits: a share of 1
_POINTERS = ("x", "weights", "y", "scales", "arranged")
_FIELDS = (*_POINTERS, "inputs", "rows", "blocks")


class Product:
    """The product for weights of one dtype. ``lanes``: outputs of a block; ``inputs``: of a step; ``most_rows``: of an
    inner loop.
    """

    def __init__(self, multiply: Function, writer: ProductWriter) -> None:
        self.function, self.lanes, self.most_rows = multiply, writer.lanes, writer.most_rows
        self.inputs = 2 if writer.pairs else 1

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """A matrix [out, in] packed, with outputs of zeros up to a whole block and inputs of zeros up to whole turns,
        or to whole vectors of pairs.
        """
        if self.inputs == 2:
            weight = F.pad(weight, (0, -weight.shape[1] % _ROUNDED)).view(torch.int32)
        (n_out, n_in), lanes = weight.shape, self.lanes
        whole, rest = divmod(n_out, lanes)
        turns = -(-n_in // _TURN_OF_ARRANGED)
        packed = torch.zeros(whole + bool(rest), turns * _TURN_OF_ARRANGED, lanes, dtype=weight.dtype)
        packed[:whole, :n_in].transpose(1, 2).copy_(weight[: n_out - rest].view(whole, lanes, n_in))
        if rest:
            packed[whole, :n_in, :rest] = weight[n_out - rest :].t()
        return packed

    def __call__(self, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor | None = None) -> torch.Tensor:
        """x [rows, inputs] by a matrix ``packed`` [blocks, steps, lanes] -> [rows, blocks * lanes], a new tensor.
        ``scales`` [blocks * lanes] float32, of int8 weights.
        """
        rows, (blocks, steps, lanes) = x.shape[0], packed.shape
        inputs = steps * self.inputs
        if x.dtype != torch.float32 or x.shape[1] != inputs:
            raise ValueError(f"rows of {inputs} float32 numbers are needed, not {tuple(x.shape)} {x.dtype}")
        x = x.contiguous()
        y = torch.empty(rows, blocks * lanes, dtype=torch.float32)  # the default may be another one for a while
        scaled = 0 if scales is None else scales.data_ptr()
        arranged = torch.empty(rows, steps, dtype=torch.int32)
        pointers = (x.data_ptr(), packed.data_ptr(), y.data_ptr(), scaled, arranged.data_ptr())
        fields = (*pointers, steps, rows, blocks)
        self.function(*fields, parts=blocks, work=rows * blocks * inputs * lanes)
        return y


def _is_right(made: Product, dtype: torch.dtype) -> bool:
    """Each number of rows, and so many that threads share them: the numbers, and that a row keeps its bits."""
    generator, single = torch.Generator().manual_seed(0), torch.float32
    weight = (9 * torch.randn(65 * made.lanes, 32, generator=generator, dtype=single)).to(dtype)
    x = torch.randn(2 * made.most_rows + 1, 32, generator=generator, dtype=single)
    scales, packed = torch.arange(65 * made.lanes, dtype=single), made.pack(weight)
    rounded = x.to(dtype).float() if made.inputs == 2 else x
    expected = rounded @ weight.float().t() * (scales if dtype == torch.int8 else 1)
    found = made(x, packed, scales)
    alike = all(torch.equal(made(x[:n], packed, scales), found[:n]) for n in range(1, made.most_rows + 1))
    return alike and torch.allclose(found, expected, rtol=1e-3, atol=1e-3)


@compiled(_is_right)
def product_of(cpu: Cpu, dtype: torch.dtype) -> Product:
    """The product for weights of ``dtype``, int8 or of floating point; None where this CPU or LLVM cannot have it."""
    writer = ProductWriter(cpu, dtype)
    return Product(load(writer, cpu)["multiply"], writer)


class ProductWriter(Writer):
    """``multiply`` takes the blocks of this thread in chunks. An inner loop for each number of rows up to
    ``most_rows``, by one block or several.
    """

    def __init__(self, cpu: Cpu, dtype: torch.dtype) -> None:
        wide, pairs = cpu.wide, cpu.pairs and dtype == torch.bfloat16
        self.wide, self.lanes = wide, 32 if wide else 16
        self.chunk = _CHUNK // self.lanes  # blocks
        super().__init__(cpu, self.lanes)
        self.pairs: Any = self._pairs() if pairs else None
        self.most_rows = MOST_OF_PAIRS if pairs else MOST_ROWS
        bits = self.ir.IntType(16)  # llvmlite has no bfloat16
        kinds = {torch.int8: self.ir.IntType(8), torch.float16: self.ir.HalfType(), torch.bfloat16: bits}
        self.bytes, self.weight = (4, self.int) if pairs else (dtype.itemsize, kinds.get(dtype, self.single))
        self.given = self.int if pairs else self.single  # a number of x
        self.scaled = dtype == torch.int8
        self.inner = {
            (rows, blocks, soon): self._inner(rows, blocks, soon)
            for rows in range(1, self.most_rows + 1)
            for blocks in sorted({1, 2, self.chunk})
            for soon in {False, pairs}
            if blocks == 1 or self._gains(rows, blocks)
        }
        self._multiply()

    def _gains(self, rows: int, blocks: int) -> bool:
        """Whether ``rows`` are faster by several ``blocks`` at a time, whose sums still stay in registers."""
        if self.wide:
            return (rows > _FEW_ROWS or self.scaled) and not self.pairs
        return rows * blocks <= self.chunk

    def _inner(self, rows: int, blocks: int, soon: bool) -> Any:
        """``rows`` of x by ``blocks``: (x, weights, y, scales, ahead, inputs, outputs, share), pointers to the first of
        each. ``ahead``: what to ask memory for; ``share``: how much of it, in 65536ths, if not all of it comes
        ``soon``.
        """
        inner, given = self.begin(f"rows{rows}_blocks{blocks}{'_soon' if soon else ''}", 5, 3)
        x, weights, y, scales, ahead, inputs, outputs, share = given
        x, weights, size = x.of(self.given), weights.of(self.weight), inputs * self.lanes
        starts = [weights + size * block for block in range(blocks)]
        sums, turn = [self.zero] * (rows * blocks), _TURN_OF_ARRANGED if self._arranged(rows) else _TURN
        with self.loop(0, inputs, turn, sums) as (first, values):
            if rows > 1 or self.scaled:
                self._ask_ahead(ahead, size, first, turn, blocks, None if soon else share)
            for step in range(turn):
                k = first + step
                wide = [self._widened(start, k) for start in starts]
                for row in range(rows):
                    number = self.everywhere(x[self._place(row, rows, k, inputs)])
                    for i, weight in enumerate(wide, row * blocks):
                        values[i] = self._added(weight, number, values[i])
        for i, value in enumerate(sums):
            row, first = i // blocks, i % blocks * self.lanes
            if self.scaled:
                value = value * scales.vector(first)
            y.put(value, outputs * row + first)
        self.b.ret_void()
        return inner

    def _arranged(self, rows: int) -> bool:
        """Whether the numbers of an input lie together, of ``rows`` that are multiplied together."""
        return rows > _FEW_OF_PAIRS if self.pairs else rows > _FEW_ROWS and not self.wide

    def _place(self, row: Any, rows: int, k: Any, inputs: Any) -> Any:
        """Where number ``k`` of a row is."""
        return k * rows + row if self._arranged(rows) else inputs * row + k

    def _ask_ahead(self, ahead: Any, size: Any, k: Any, turn: int, blocks: int, share: Any) -> None:
        """Asks memory for a ``share`` of what a turn from step ``k`` on reads of blocks of ``size`` weights, from
        ``ahead`` on: of narrow blocks in one stream for each of a chunk.
        """
        streams = 1 if self.wide else self.chunk
        each = blocks * self.lanes * self.bytes // streams  # bytes of a step
        before = k * each
        if share is not None:
            before = before * share >> _WHOLE
        for stream in range(streams):
            at = size * (stream * self.bytes) + before
            for line in range(0, turn * each, LINE):
                self.ask(ahead.of(self.byte) + (at + line))

    def _widened(self, start: Any, k: Any) -> Any:
        """The weights of step ``k`` in float32, or pairs as they are."""
        kind = self.ir.VectorType(self.weight, self.lanes)
        found = start.vector(k * self.lanes, kind, self.lanes * self.bytes)
        if self.scaled:
            return found.to(self.vector, "sitofp")
        if self.weight == self.given:
            return found
        if self.weight == self.ir.HalfType():
            return found.to(self.vector, "fpext")
        whole = found.to(self.ir.VectorType(self.int, self.lanes), "zext")  # bfloat16 is the upper half of a float32
        return (whole << 16).to(self.vector, "bitcast")

    def _added(self, weight: Any, number: Any, value: Any) -> Any:
        """``value`` + ``weight`` ``number``."""
        if self.pairs is None:
            return self.fma(weight, number, value)
        parts = []
        for first in range(0, self.lanes, LANES):
            start, *factors = (self._lanes_of(one, one, first, LANES) for one in (value, weight, number))
            parts.append(self.pairs(start, *(one.to(self.factors, "bitcast") for one in factors)))
        return self._lanes_of(parts[0], parts[-1], 0, self.lanes)

    def _lanes_of(self, one: Any, two: Any, first: int, n: int) -> Any:
        """``n`` numbers from ``first`` on of two vectors, one after the other."""
        places = self.constant(list(range(first, first + n)), self.ir.VectorType(self.int, n))
        return self.wrapped(self.b.shuffle_vector(one.raw, two.raw, places.raw))

    def _pairs(self) -> Any:
        """AVX512-BF16's instruction: to 16 float32 numbers it adds the products of 16 pairs."""
        number = type("Bfloat", (self.ir.Type,), {"_to_string": lambda self: "bfloat"})()  # which llvmlite has not
        sums, self.factors = self.ir.VectorType(self.single, LANES), self.ir.VectorType(number, 2 * LANES)
        return self.declare("llvm.x86.avx512bf16.dpbf16ps.512", sums, [sums, self.factors, self.factors])

    def _multiply(self) -> None:
        given, _ = self.entry("multiply", _FIELDS, _POINTERS)
        cut = self.cut(given["rows"], self.most_rows)
        share = self.constant(1 << _WHOLE, self.long) // cut.parts
        self._arrange(given, cut)
        first, end = self.mine(given["blocks"])
        whole = end - (end - first) % self.chunk
        for begin, until, blocks in ((first, whole, self.chunk), (whole, end, 1)):
            with self.each(until, blocks, begin) as block, self.parts(cut) as part:
                for rows in self.cases(part.n, self.most_rows):
                    self._some_rows(given, part, rows, block, blocks, share)
        self.b.ret_void()

    def _arrange(self, given: dict[str, Any], cut: Cut) -> None:
        """Arranges rows that are multiplied together, and rounds pairs: every thread writes the same."""
        inputs = given["inputs"]
        with self.parts(cut) as part:
            first = part.first * inputs
            to = given["arranged"].of(self.int) + first
            x = given["x"] + (first * 2 if self.pairs else first)
            for rows in self.cases(part.n, self.most_rows):
                if self.pairs:
                    self._round(x, to, rows, inputs)
                elif self._arranged(rows):
                    with self.each(inputs) as k:
                        for row in range(rows):
                            to[self._place(row, rows, k, inputs)] = x.of(self.int)[inputs * row + k]

    def _round(self, x: Any, to: Any, rows: int, inputs: Any) -> None:
        wide, whole = self.ir.VectorType(self.single, _ROUNDED), self.ir.VectorType(self.int, LANES)
        with self.each(rows) as row, self.each(inputs, LANES) as k:
            found = x.vector((inputs * row + k) * 2, wide)
            pairs = found.to(self.factors, "fptrunc").to(whole, "bitcast")
            if not self._arranged(rows):
                to.put(pairs, self._place(row, rows, k, inputs))
            for i in range(LANES if self._arranged(rows) else 0):
                to[self._place(row, rows, k + i, inputs)] = pairs[i]

    def _some_rows(self, given: dict[str, Any], part: Part, rows: int, block: Any, blocks: int, share: Any) -> None:
        width = max(width for of, width, _ in self.inner if of == rows and width <= blocks)
        outputs, size = (given[name] * self.lanes for name in ("blocks", "inputs"))
        x = given["arranged" if self.pairs or self._arranged(rows) else "x"].of(self.given)
        x = x + part.first * given["inputs"]
        for done in range(0, blocks, width):
            first = (block + done) * self.lanes  # output
            weights = given["weights"].of(self.weight) + first * given["inputs"]
            y, scales = given["y"] + (part.first * outputs + first), given["scales"] + first
            for soon, ahead in self._ahead(weights, size, part, done, share):
                self.inner[rows, width, soon](x, weights, y, scales, ahead, given["inputs"], outputs, share)

    def _ahead(self, weights: Any, size: Any, part: Part, done: int, share: Any) -> Iterator[tuple[bool, Any]]:
        """Code for what to ask for, and whether it comes soon, while ``weights``, of block ``done`` of a chunk, meet a
        part of the rows: the same part of the next chunk, of narrow blocks of each of them.
        """
        next_one = weights + size * (self.chunk - done)
        asked = size * (part.index * self.chunk + done) * share >> _WHOLE
        later = next_one + (asked if self.wide else asked // self.chunk)
        if not self.pairs:
            yield False, later
            return
        with self.b.if_else(share.equals(1 << _WHOLE).raw) as (all_rows, some):
            with all_rows:
                yield True, weights.of(self.byte) + _SOON
            with some:
                yield False, later
