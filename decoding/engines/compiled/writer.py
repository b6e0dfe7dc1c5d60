"""Writes LLVM's assembly: loops over vectors of float32 numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


def _instruction(of_integers: str, of_floats: str = "") -> Callable[[Value, Any], Value]:
    """The operator of a value that writes the instruction of its kind; whole numbers divide towards zero."""

    def write(one: Value, other: Any) -> Value:
        w = one.writer
        instruction = getattr(w.b, of_integers if one.is_integer else of_floats)
        return w.wrapped(instruction(one.raw, w.raw(other, one.raw.type)))

    return write


def _comparison(sign: str) -> Callable[[Value, Any], Value]:
    """The operator of a value that compares it, signed; a comparison with NaN does not hold."""

    def write(one: Value, other: Any) -> Value:
        w = one.writer
        instruction = w.b.icmp_signed if one.is_integer else w.b.fcmp_ordered
        return w.wrapped(instruction(sign, one.raw, w.raw(other, one.raw.type)))

    return write


class Value:
    """What the code computes: a number, or a vector of them. An operator writes an instruction; a plain number beside
    it is a constant of its kind.
    """

    def __init__(self, writer: Writer, raw: Any) -> None:
        """``raw``: llvmlite's."""
        self.writer, self.raw = writer, raw

    __add__, __sub__ = _instruction("add", "fadd"), _instruction("sub", "fsub")
    __mul__, __truediv__ = _instruction("mul", "fmul"), _instruction("", "fdiv")
    __floordiv__, __mod__ = _instruction("sdiv"), _instruction("srem")
    __lshift__, __rshift__ = _instruction("shl"), _instruction("lshr")
    __lt__, __gt__ = _comparison("<"), _comparison(">")
    equals, differs = _comparison("=="), _comparison("!=")

    @property
    def is_integer(self) -> bool:
        kind = self.raw.type
        return isinstance(getattr(kind, "element", kind), self.writer.ir.IntType)

    @property
    def pointer(self) -> Pointer:
        """To the address that it is."""
        return Pointer(self.writer, self.writer.b.inttoptr(self.raw, self.writer.pointer))

    def to(self, kind: Any, instruction: str) -> Value:
        """Converted."""
        return Value(self.writer, getattr(self.writer.b, instruction)(self.raw, kind))

    def __getitem__(self, lane: int) -> Value:
        """One of a vector's numbers."""
        return Value(self.writer, self.writer.b.extract_element(self.raw, self.writer.int(lane)))


class Pointer:
    """To numbers of a ``kind``, of float32 unless stated otherwise."""

    def __init__(self, writer: Writer, raw: Any, kind: Any = None) -> None:
        self.writer, self.raw, self.kind = writer, raw, kind or writer.single

    def of(self, kind: Any) -> Pointer:
        return Pointer(self.writer, self.raw, kind)

    def __add__(self, index: Any) -> Pointer:
        w = self.writer
        return Pointer(w, w.b.gep(self.raw, [w.raw(index)], source_etype=self.kind), self.kind)

    def __getitem__(self, index: Any) -> Value:
        return Value(self.writer, self.writer.b.load((self + index).raw, typ=self.kind))

    def __setitem__(self, index: Any, number: Any) -> None:
        self.writer.b.store(self.writer.raw(number, self.kind), (self + index).raw)

    def vector(self, index: Any, kind: Any = None, align: int = 4) -> Value:
        """The numbers from ``index`` on: a vector of the writer's, or of that ``kind``."""
        w = self.writer
        return Value(w, w.b.load((self + index).raw, align=align, typ=kind or w.vector))

    def put(self, vector: Value, index: Any) -> None:
        self.writer.b.store(vector.raw, (self + index).raw, align=4)


class Writer:
    """A module under construction. ``entries``: names of the functions that are called from outside, each with a
    pointer to int64 fields. ``b``: llvmlite's builder, at the place where code is written.
    """

    b: Any

    def __init__(self, cpu: Cpu, lanes: int = LANES) -> None:
        """``lanes``: numbers of a vector."""
        import llvmlite.ir as ir

        self.ir, self.long, self.int, self.byte = ir, ir.IntType(64), ir.IntType(32), ir.IntType(8)
        self.pointer, self.single, self.none = ir.PointerType(), ir.FloatType(), ir.VoidType()
        self.vector = ir.VectorType(self.single, lanes)
        self.zero = self.constant(0.0)
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

    def declare(self, name: str, result: Any, arguments: list[Any]) -> Callable[..., Any]:
        """What calls a function of that name."""
        return self.caller(self._function(name, result, arguments))

    def _function(self, name: str, result: Any, arguments: list[Any]) -> Any:
        return self.ir.Function(self.module, self.ir.FunctionType(result, arguments), name)

    def caller(self, function: Any) -> Callable[..., Any]:
        """What calls a ``function``, of pointers, values or plain numbers."""
        kinds = [argument.type for argument in function.args]

        def call(*given: Any) -> Any:
            return self.wrapped(self.b.call(function, [self.raw(one, kind) for one, kind in zip(given, kinds)]))

        return call

    def outside(self, function: Any) -> Callable[..., Any]:
        """What calls a function that was compiled before, with a pointer to its fields."""
        name = f"at_{function.address}"
        self.outsiders[name] = function.address
        return self.declare(name, self.none, [self.pointer])

    def begin(self, name: str, pointers: int, numbers: int) -> tuple[Callable[..., Any], list[Any]]:
        """Begins a function for use in this module: what calls it, and its arguments, int64 ``numbers`` the last."""
        function = self._function(name, self.none, [self.pointer] * pointers + [self.long] * numbers)
        function.linkage = "internal"
        self.b = self.ir.IRBuilder(function.append_basic_block())
        return self.caller(function), [self.wrapped(one) for one in function.args]

    def entry(self, name: str, fields: Sequence[str], pointers: Sequence[str]) -> tuple[dict[str, Any], Pointer]:
        """Begins a function that is called from outside: its ``fields`` by name, and the pointer to them."""
        self.entries.append(name)
        function = self._function(name, self.none, [self.pointer])
        self.b = self.ir.IRBuilder(function.append_basic_block())
        arguments = Pointer(self, function.args[0], self.long)
        given: dict[str, Any] = {field: arguments[i] for i, field in enumerate(fields)}
        return given | {field: given[field].pointer for field in pointers}, arguments

    def raw(self, one: Any, kind: Any = None) -> Any:
        """llvmlite's value of ``one``; of a plain number the constant of a ``kind``, int64 unless stated otherwise."""
        return one.raw if isinstance(one, Value | Pointer) else self.constant(one, kind or self.long).raw

    def wrapped(self, raw: Any) -> Any:
        """A pointer or a value."""
        return (Pointer if isinstance(raw.type, self.ir.PointerType) else Value)(self, raw)

    def constant(self, number: Any, kind: Any = None) -> Value:
        """A ``number``, or numbers, of a ``kind``; a vector's are alike where there is one number."""
        kind = kind or self.vector
        alike = isinstance(kind, self.ir.VectorType) and isinstance(number, int | float)
        return Value(self, self.ir.Constant(kind, [number] * kind.count if alike else number))

    @contextmanager
    def loop(self, first: Any, end: Any, step: int, start: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
        """Code for as long as a whole step remains before ``end``. Gives the index, and the values that begin as
        ``start``: replace each in the list by its next one. Afterwards ``start`` has the last ones.
        """
        b, end, begins = self.b, self.raw(end), [self.raw(first), *map(self.raw, start)]
        before, head, body, after = b.block, *(b.append_basic_block() for _ in range(3))
        b.branch(head)
        b.position_at_end(head)
        phis = [b.phi(one.type) for one in begins]
        following = b.add(phis[0], self.long(step))
        b.cbranch(b.icmp_signed("<=", following, end), body, after)
        b.position_at_end(body)
        index, *values = map(self.wrapped, phis)
        yield index, values
        for phi, begin, value in zip(phis, begins, (following, *map(self.raw, values))):
            phi.add_incoming(begin, before)
            phi.add_incoming(value, b.block)
        b.branch(head)
        b.position_at_end(after)
        start[:] = map(self.wrapped, phis[1:])

    @contextmanager
    def each(self, end: Any, step: int = 1, first: Any = 0) -> Iterator[Any]:
        """Code for each index, as ``loop``."""
        with self.loop(first, end, step, []) as (index, _):
            yield index

    def mine(self, whole: Any) -> tuple[Any, Any]:
        """The bounds of this thread's part of ``whole``, cut into parts that differ by one at most."""
        ask = [one().to(self.long, "sext") for one in self._openmp]
        thread, threads = ask or (self.constant(number, self.long) for number in (0, 1))
        whole = self.wrapped(self.raw(whole))
        first, end = (whole * (thread + more) // threads for more in (0, 1))
        return first, end

    def wait(self) -> None:
        """For the other threads that share this call."""
        if self._barrier is not None:
            self._barrier()

    def cut(self, n: Any, most: int) -> Cut:
        """``n`` things into parts of up to ``most``, equal ones: few sums wait for each other. None are one part."""
        parts = (n + (most - 1)) // most
        parts = self.select(parts > 0, parts, 1)
        return Cut(parts, n // parts, n % parts)

    @contextmanager
    def parts(self, cut: Cut) -> Iterator[Part]:
        """Code for each part. Nothing is divided here, which takes as long as dozens of other steps."""
        with self.loop(0, cut.parts, 1, [0]) as (index, values):
            first, more = values[0], index < cut.larger
            n = cut.least + more.to(self.long, "zext")
            values[0] = first + n
            yield Part(first, n, index)

    def cases(self, n: Any, most: int) -> Iterator[int]:
        """Code for each of the numbers from 1 to ``most`` that ``n`` may be."""
        b = self.b
        after = b.append_basic_block()
        choice = b.switch(n.raw, after)
        for number in range(1, most + 1):
            case = b.append_basic_block()
            choice.add_case(self.long(number), case)
            b.position_at_end(case)
            yield number
            b.branch(after)
        b.position_at_end(after)

    def select(self, condition: Value, one: Any, two: Any) -> Any:
        """``one`` where the condition holds, else ``two``; one of them may be a plain number."""
        kind = next(given.raw.type for given in (one, two) if isinstance(given, Value | Pointer))
        return self.wrapped(self.b.select(condition.raw, self.raw(one, kind), self.raw(two, kind)))

    def larger(self, one: Value, two: Any) -> Any:
        return self.select(one > two, one, two)

    def smaller(self, one: Value, two: Any) -> Any:
        return self.select(one < two, one, two)

    def ask(self, address: Pointer) -> None:
        """Asks memory for the line at ``address``."""
        self.prefetch(address, 0, 3, 1)  # to read, into all caches, data

    def room(self, kind: Any, n: Any, align: int) -> Pointer:
        """A pointer to ``n`` numbers for as long as this call lasts."""
        found = self.b.alloca(kind, size=self.raw(n))
        found.align, found.type = align, self.pointer  # llvmlite's own type is one that LLVM no longer has
        return Pointer(self, found, kind)

    def sum_of(self, vector: Any) -> Any:
        return self.total(-0.0, vector)

    def largest(self, vector: Any) -> Any:
        numbers = [vector[i] for i in range(self.vector.count)]
        while len(numbers) > 1:
            numbers = [self.larger(one, two) for one, two in zip(*[iter(numbers)] * 2)]
        return numbers[0]

    def everywhere(self, number: Any) -> Any:
        """A vector of one number."""
        lanes = self.vector.count
        kind = self.ir.VectorType(number.raw.type, lanes)
        undefined = self.ir.Constant(kind, self.ir.Undefined)
        places = self.constant(0, self.ir.VectorType(self.int, lanes)).raw
        one = self.b.insert_element(undefined, number.raw, self.int(0))
        return Value(self, self.b.shuffle_vector(one, undefined, places))

    def exp(self, x: Any) -> Any:
        """exp of numbers that are not positive, to about 1e-7: 2^n times a polynomial of the rest."""
        x = self.select(x < LOWEST, LOWEST, x)
        n = self.floor(self.fma(x, _LOG2E, 0.5))
        rest = x
        for part in _LN2:
            rest = self.fma(n, -part, rest)
        power = _EXP[0]
        for coefficient in _EXP[1:]:
            power = self.fma(power, rest, coefficient)
        power = self.fma(power, rest * rest, rest) + 1.0
        exponent = n.to(self.ir.VectorType(self.int, self.vector.count), "fptosi") + 127
        return power * (exponent << 23).to(self.vector, "bitcast")
