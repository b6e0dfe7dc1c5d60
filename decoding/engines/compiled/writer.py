"""Writes LLVM's assembly: loops over vectors of float32 numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

LANES = 16  # of a vector, unless stated otherwise: two registers of AVX2, one of AVX512, four of NEON
OPENMP = ("omp_get_thread_num", "omp_get_num_threads", "GOMP_barrier")  # in a plain call 0, 1, and without effect
_LOG2E = 1.4426950408889634
_LN2 = 0.693359375, -2.12194440e-4  # high and low part, so that a multiple of the first is exact
LINE = 64  # bytes that memory delivers together
LOWEST = -87.0  # whose exponential is still a normal number
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)  # Cephes


class Cpu(NamedTuple):
    """A CPU as LLVM names it. ``wide``: it has 32 registers of 16 float32 numbers; ``pairs``: it multiplies pairs of
    bfloat16 numbers; ``shared``: OpenMP's threads may share a call.
    """

    triple: str
    name: str
    features: str
    wide: bool
    pairs: bool
    shared: bool


class Cut(NamedTuple):
    """Into so many ``parts``: ``larger`` ones of ``least`` + 1 things, then others of ``least``."""

    parts: Any
    least: Any
    larger: Any


class Part(NamedTuple):
    """``n`` things from ``first`` on, which are part ``index``."""

    first: Any
    n: Any
    index: Any


class Writer:
    """A module under construction. ``entries``: names of the functions that are called from outside, each with a
    pointer to int64 fields. ``b``: the builder, at the place where code is written.
    """

    def __init__(self, cpu: Cpu, lanes: int = LANES) -> None:
        """``lanes``: numbers of a vector."""
        import llvmlite.ir as ir

        self.ir, self.long, self.int, self.pointer = ir, ir.IntType(64), ir.IntType(32), ir.PointerType()
        self.single, self.none = ir.FloatType(), ir.VoidType()
        self.vector = ir.VectorType(self.single, lanes)
        self.zero = ir.Constant(self.vector, [0.0] * lanes)
        self.module = ir.Module()
        self.module.triple = cpu.triple
        self.entries: list[str] = []
        self.outsiders: dict[str, int] = {}  # addresses of compiled functions that it calls
        self.fma = self.declare(f"llvm.fma.v{lanes}f32", self.vector, [self.vector] * 3)
        self.floor = self.declare(f"llvm.floor.v{lanes}f32", self.vector, [self.vector])
        self.total = self.declare(f"llvm.vector.reduce.fadd.v{lanes}f32", self.single, [self.single, self.vector])
        self.prefetch = self.declare("llvm.prefetch.p0", self.none, [self.pointer] + [self.int] * 3)
        self.root = self.declare("llvm.sqrt.f32", self.single, [self.single])
        self._openmp = [self.declare(name, self.int, []) for name in OPENMP[:2]] if cpu.shared else []
        self._barrier = self.declare(OPENMP[2], self.none, []) if cpu.shared else None

    def code(self) -> str:
        return str(self.module)

    def declare(self, name: str, result: Any, arguments: list[Any]) -> Any:
        return self.ir.Function(self.module, self.ir.FunctionType(result, arguments), name)

    def outside(self, function: Any) -> Any:
        """A function that was compiled before, with a pointer to its fields."""
        name = f"at_{function.address}"
        self.outsiders[name] = function.address
        return self.declare(name, self.none, [self.pointer])

    def begin(self, function: Any) -> Any:
        return self.ir.IRBuilder(function.append_basic_block())

    def entry(self, name: str, fields: Sequence[str], pointers: Sequence[str]) -> tuple[Any, dict[str, Any]]:
        """Begins a function that is called from outside: its builder, and its ``fields`` by name."""
        self.entries.append(name)
        function = self.declare(name, self.none, [self.pointer])
        b = self.begin(function)
        places = [self.at(b, function.args[0], self.long(i), self.long) for i in range(len(fields))]
        given = {field: b.load(at, typ=self.long) for field, at in zip(fields, places)}
        return b, given | {field: b.inttoptr(given[field], self.pointer) for field in pointers}

    @contextmanager
    def loop(self, b: Any, first: Any, end: Any, step: int, start: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
        """Code for as long as a whole step remains before ``end``. Gives the index, and the values that begin as
        ``start``: replace each in the list by its next one. Afterwards ``start`` has the last ones.
        """
        before, head, body, after = b.block, *(b.append_basic_block() for _ in range(3))
        b.branch(head)
        b.position_at_end(head)
        index, *carried = (b.phi(one.type) for one in (first, *start))
        following = b.add(index, self.long(step))
        b.cbranch(b.icmp_signed("<=", following, end), body, after)
        b.position_at_end(body)
        values = list(carried)
        yield index, values
        for phi, begin, value in zip((index, *carried), (first, *start), (following, *values)):
            phi.add_incoming(begin, before)
            phi.add_incoming(value, b.block)
        b.branch(head)
        b.position_at_end(after)
        start[:] = carried

    def mine(self, b: Any, whole: Any) -> tuple[Any, Any]:
        """The bounds of this thread's part of ``whole``."""
        thread, threads = [b.sext(b.call(one, []), self.long) for one in self._openmp] or (self.long(0), self.long(1))
        return self.part(b, whole, threads, thread)

    def wait(self, b: Any) -> None:
        """For the other threads that share this call."""
        if self._barrier is not None:
            b.call(self._barrier, [])

    def part(self, b: Any, whole: Any, parts: Any, index: Any) -> tuple[Any, Any]:
        """The bounds of part ``index`` of ``whole``, cut into ``parts`` that differ by one at most."""
        first, end = (b.sdiv(b.mul(whole, b.add(index, self.long(more))), parts) for more in (0, 1))
        return first, end

    def cut(self, b: Any, n: Any, most: int) -> Cut:
        """``n`` things into parts of up to ``most``, equal ones: few sums wait for each other. None are one part."""
        parts = b.sdiv(b.add(n, self.long(most - 1)), self.long(most))
        parts = b.select(b.icmp_signed(">", parts, self.long(0)), parts, self.long(1))
        return Cut(parts, b.sdiv(n, parts), b.srem(n, parts))

    @contextmanager
    def parts(self, b: Any, cut: Cut) -> Iterator[Part]:
        """Code for each part. Nothing is divided here, which takes as long as dozens of other steps."""
        with self.loop(b, self.long(0), cut.parts, 1, [self.long(0)]) as (index, values):
            first, more = values[0], b.icmp_signed("<", index, cut.larger)
            n = b.add(cut.least, b.zext(more, self.long))
            values[0] = b.add(first, n)
            yield Part(first, n, index)

    def cases(self, b: Any, n: Any, most: int) -> Iterator[int]:
        """Code for each of the numbers from 1 to ``most`` that ``n`` may be."""
        after = b.append_basic_block()
        choice = b.switch(n, after)
        for number in range(1, most + 1):
            case = b.append_basic_block()
            choice.add_case(self.long(number), case)
            b.position_at_end(case)
            yield number
            b.branch(after)
        b.position_at_end(after)

    def at(self, b: Any, pointer: Any, index: Any, kind: Any) -> Any:
        return b.gep(pointer, [index], source_etype=kind)

    def ask(self, b: Any, address: Any) -> None:
        """Asks memory for the line at ``address``."""
        b.call(self.prefetch, [address, self.int(0), self.int(3), self.int(1)])  # to read, into all caches, data

    def number(self, b: Any, pointer: Any, index: Any) -> Any:
        return b.load(self.at(b, pointer, index, self.single), typ=self.single)

    def vector_at(self, b: Any, pointer: Any, index: Any) -> Any:
        return b.load(self.at(b, pointer, index, self.single), align=4, typ=self.vector)

    def put(self, b: Any, vector: Any, pointer: Any, index: Any) -> None:
        b.store(vector, self.at(b, pointer, index, self.single), align=4)

    def room(self, b: Any, kind: Any, n: Any, align: int) -> Any:
        """A pointer to ``n`` numbers for as long as this call lasts."""
        found = b.alloca(kind, size=n)
        found.align, found.type = align, self.pointer  # llvmlite's own type is one that LLVM no longer has
        return found

    def constant(self, number: float) -> Any:
        return self.ir.Constant(self.vector, [number] * self.vector.count)

    def sum_of(self, b: Any, vector: Any) -> Any:
        return b.call(self.total, [self.ir.Constant(self.single, -0.0), vector])

    def largest(self, b: Any, vector: Any) -> Any:
        numbers = [b.extract_element(vector, self.int(i)) for i in range(vector.type.count)]
        while len(numbers) > 1:
            numbers = [b.select(b.fcmp_ordered(">", one, two), one, two) for one, two in zip(*[iter(numbers)] * 2)]
        return numbers[0]

    def everywhere(self, b: Any, number: Any) -> Any:
        """A vector of one number."""
        lanes = self.vector.count
        kind = self.ir.VectorType(number.type, lanes)
        undefined = self.ir.Constant(kind, self.ir.Undefined)
        places = self.ir.Constant(self.ir.VectorType(self.int, lanes), [0] * lanes)
        return b.shuffle_vector(b.insert_element(undefined, number, self.int(0)), undefined, places)

    def exp(self, b: Any, x: Any) -> Any:
        """exp of numbers that are not positive, to about 1e-7: 2^n times a polynomial of the rest."""
        constant, lanes = self.constant, self.vector.count
        x = b.select(b.fcmp_ordered("<", x, constant(LOWEST)), constant(LOWEST), x)
        n = b.call(self.floor, [b.call(self.fma, [x, constant(_LOG2E), constant(0.5)])])
        rest = x
        for part in _LN2:
            rest = b.call(self.fma, [n, constant(-part), rest])
        power = constant(_EXP[0])
        for coefficient in _EXP[1:]:
            power = b.call(self.fma, [power, rest, constant(coefficient)])
        power = b.fadd(b.call(self.fma, [power, b.fmul(rest, rest), rest]), constant(1.0))
        whole = self.ir.VectorType(self.int, lanes)
        exponent = b.add(b.fptosi(n, whole), self.ir.Constant(whole, [127] * lanes))
        return b.fmul(power, b.bitcast(b.shl(exponent, self.ir.Constant(whole, [23] * lanes)), self.vector))
