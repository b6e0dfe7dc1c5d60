"""Writes LLVM's assembly: loops over vectors of float32 numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

LANES = 16  # of a vector, unless stated otherwise: two registers of AVX2, one of AVX512, four of NEON
OPENMP = ("omp_get_thread_num", "omp_get_num_threads")  # 0 and 1 in a plain call


class Writer:
    """A module under construction. ``entries``: names of the functions that are called from outside, each with a
    pointer to int64 fields. ``b``: the builder, at the place where code is written.
    """

    def __init__(self, triple: str, shared: bool, lanes: int = LANES) -> None:
        """``shared``: whether OpenMP's threads may share a call. ``lanes``: numbers of a vector."""
        import llvmlite.ir as ir

        self.ir, self.long, self.int, self.pointer = ir, ir.IntType(64), ir.IntType(32), ir.PointerType()
        self.single, self.none = ir.FloatType(), ir.VoidType()
        self.vector = ir.VectorType(self.single, lanes)
        self.zero = ir.Constant(self.vector, [0.0] * lanes)
        self.module = ir.Module()
        self.module.triple = triple
        self.entries: list[str] = []
        self.fma = self.declare(f"llvm.fma.v{lanes}f32", self.vector, [self.vector] * 3)
        self._openmp = [self.declare(name, self.int, []) for name in OPENMP] if shared else []

    def code(self) -> str:
        return str(self.module)

    def declare(self, name: str, result: Any, arguments: list[Any]) -> Any:
        return self.ir.Function(self.module, self.ir.FunctionType(result, arguments), name)

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

    def part(self, b: Any, whole: Any, parts: Any, index: Any) -> tuple[Any, Any]:
        """The bounds of part ``index`` of ``whole``, cut into ``parts`` that differ by one at most."""
        first, end = (b.sdiv(b.mul(whole, b.add(index, self.long(more))), parts) for more in (0, 1))
        return first, end

    def at(self, b: Any, pointer: Any, index: Any, kind: Any) -> Any:
        return b.gep(pointer, [index], source_etype=kind)

    def number(self, b: Any, pointer: Any, index: Any) -> Any:
        return b.load(self.at(b, pointer, index, self.single), typ=self.single)

    def everywhere(self, b: Any, number: Any) -> Any:
        """A vector of one number."""
        lanes = self.vector.count
        kind = self.ir.VectorType(number.type, lanes)
        undefined = self.ir.Constant(kind, self.ir.Undefined)
        places = self.ir.Constant(self.ir.VectorType(self.int, lanes), [0] * lanes)
        return b.shuffle_vector(b.insert_element(undefined, number, self.int(0)), undefined, places)
