"""Products of float32 rows by packed int8, float16 or float32 matrices, compiled for this CPU by LLVM when needed.

y[r, o] = sum over k of x[r, k] W[o, k], added up in the order of k in every row, each step a fused multiply-add; the
sum of int8 weights is then multiplied by their output's scale. So a row's bits depend neither on the number of rows nor
on the CPU. Weights are widened in registers: one row takes about as long as memory needs to deliver them.

A packed matrix is [blocks, inputs, LANES]: a step reads the LANES weights of one input, which meet that input of up to
MOST_ROWS rows. Needs a CPU that widens float16: x86 with AVX2, FMA and F16C, or AArch64 (compiled, but not yet run on
one; what it computes is compared with torch's product before it is used).
"""

from __future__ import annotations

import ctypes
import logging
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..cpu import imitated

log = logging.getLogger(__name__)

LANES = 16  # outputs of a block: two registers of AVX2, one of AVX512, four of NEON
MOST_ROWS = 6  # of one inner loop, so that the sums stay in registers
_CHUNK = 4  # blocks that all rows meet before the next ones are read: they stay in the cache meanwhile
_STEPS = 2  # of one turn of an inner loop
_AHEAD = 2048  # bytes: how far ahead the loops over several rows, which take longer, ask memory for weights
_SHARED = 1 << 18  # multiply-adds: with fewer, sharing the work takes longer than doing it
_NEEDED = ("avx2", "fma", "f16c")  # on x86, as LLVM names them
_LINE = 64  # bytes that memory delivers together
_FIELDS = ("x", "weights", "y", "scales", "inputs", "rows", "blocks")
_Arguments = ctypes.c_int64 * len(_FIELDS)
_OPENMP = ("omp_get_thread_num", "omp_get_num_threads")  # 0 and 1 in a plain call


class Product:
    """The product for weights of one dtype."""

    def __init__(self, address: int, openmp: Any, keep: Any) -> None:
        """``address``: of the compiled function. ``openmp``: the library whose threads may share it, or None.
        ``keep``: what owns the code.
        """
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        self._address, self._openmp, self._keep = ctypes.c_void_p(address), openmp, keep

    def __call__(self, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor | None = None) -> torch.Tensor:
        """x [rows, inputs] by a matrix ``packed`` [blocks, inputs, LANES] -> [rows, blocks * LANES], a new tensor.
        ``scales`` [blocks * LANES] float32, of int8 weights.
        """
        x = x.contiguous()
        blocks, inputs, _ = packed.shape
        rows = x.shape[0]
        y = torch.empty(rows, blocks * LANES)
        few = rows * packed.numel() < _SHARED
        threads = 1 if few or self._openmp is None else min(torch.get_num_threads(), blocks)
        scaled = 0 if scales is None else scales.data_ptr()
        arguments = _Arguments(x.data_ptr(), packed.data_ptr(), y.data_ptr(), scaled, inputs, rows, blocks)
        if threads == 1:
            self._call(arguments)
        else:
            self._openmp.GOMP_parallel(self._address, arguments, threads, 0)
        return y


def pack(weight: torch.Tensor) -> torch.Tensor:
    """A matrix [out, in] packed, with outputs of zeros up to a whole block and inputs of zeros up to an even number."""
    n_out, n_in = weight.shape
    blocks, inputs = -(-n_out // LANES), -(-n_in // _STEPS) * _STEPS
    whole = torch.zeros(blocks * LANES, inputs, dtype=weight.dtype)
    whole[:n_out, :n_in] = weight
    return whole.view(blocks, LANES, inputs).transpose(1, 2).contiguous()


def product_of(dtype: torch.dtype) -> Product | None:
    """The product for weights of ``dtype``, int8, float16 or float32; None where this CPU or LLVM cannot have it."""
    return None if imitated() == "plain" else _product_for(dtype, imitated())


@cache
def _product_for(dtype: torch.dtype, cpu: str) -> Product | None:
    try:
        made = _compile(dtype, cpu)
    except (ImportError, OSError, RuntimeError) as error:
        log.info("no compiled products: %s", error)
        return None
    return made if made is not None and _is_right(made, dtype) else None


def _is_right(made: Product, dtype: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(0)
    weight = (9 * torch.randn(65 * LANES, 24, generator=generator)).to(dtype)
    x, scales = torch.randn(2 * MOST_ROWS + 1, 24, generator=generator), torch.arange(65.0 * LANES)
    expected = x @ weight.float().t() * (scales if dtype == torch.int8 else 1)
    right = torch.allclose(made(x, pack(weight), scales), expected, rtol=1e-3, atol=1e-3)
    if not right:
        log.warning("compiled products are wrong on this CPU, and not used")
    return right


def _compile(dtype: torch.dtype, imitated_cpu: str) -> Product | None:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    if platform.machine().lower() in ("x86_64", "amd64"):
        if not all(features.get(name) for name in _NEEDED):
            return None
    elif platform.machine().lower() not in ("aarch64", "arm64"):
        return None
    wide = bool(features.get("avx512f")) and imitated_cpu != "avx2"
    cpu = ("x86-64-v4" if wide else "x86-64-v3") if imitated_cpu else llvm.get_host_cpu_name()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features="" if imitated_cpu else features.flatten(), opt=3
    )
    openmp = _find_openmp()
    if openmp is not None:
        for name in _OPENMP:
            llvm.add_symbol(name, ctypes.cast(openmp[name], ctypes.c_void_p).value)
    code = write_code(llvm.get_default_triple(), dtype, most_sums=24 if wide else 4, shared=openmp is not None)
    module = llvm.parse_assembly(code)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return Product(engine.get_function_address("multiply"), openmp, engine)


def _find_openmp() -> Any | None:
    """The OpenMP library whose threads torch uses; None if it uses none, or one without GNU's calls."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*")):
        try:
            library = ctypes.CDLL(str(path))
            library.GOMP_parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
            library.GOMP_parallel.restype = None
            return library if all(hasattr(library, name) for name in _OPENMP) else None
        except (OSError, AttributeError):
            continue
    return None


def write_code(triple: str, dtype: torch.dtype, most_sums: int, shared: bool) -> str:
    """LLVM's assembly of ``multiply(arguments)``, of a pointer to _FIELDS. ``most_sums``: so many vectors of LANES sums
    stay in registers. ``shared``: whether OpenMP's threads share the blocks.
    """
    return str(_Code(triple, dtype, most_sums, shared).module)


class _Code:
    """Writes ``multiply``, which takes the blocks of this thread in chunks, and an inner loop for each number of rows
    up to MOST_ROWS by one block or as many as fit into registers.
    """

    def __init__(self, triple: str, dtype: torch.dtype, most_sums: int, shared: bool) -> None:
        import llvmlite.ir as ir

        self.ir, self.long, self.int, self.pointer = ir, ir.IntType(64), ir.IntType(32), ir.PointerType()
        self.single, self.bytes = ir.FloatType(), dtype.itemsize
        self.weight = {torch.int8: ir.IntType(8), torch.float16: ir.HalfType()}.get(dtype, self.single)
        self.vector, self.none = ir.VectorType(self.single, LANES), ir.VoidType()
        self.module = ir.Module()
        self.module.triple = triple
        self.fma = self._function(f"llvm.fma.v{LANES}f32", self.vector, [self.vector] * 3)
        self.prefetch = self._function("llvm.prefetch.p0", self.none, [self.pointer] + [self.int] * 3)
        self.openmp = [self._function(name, self.int, []) for name in _OPENMP] if shared else []
        self.inner = {
            (rows, blocks): self._inner(rows, blocks)
            for rows in range(1, MOST_ROWS + 1)
            for blocks in (1, 2, _CHUNK)
            if blocks == 1 or rows * blocks <= most_sums
        }
        self._multiply()

    def _function(self, name: str, result: Any, arguments: list[Any]) -> Any:
        return self.ir.Function(self.module, self.ir.FunctionType(result, arguments), name)

    @contextmanager
    def _loop(self, b: Any, first: Any, end: Any, step: int, start: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
        """Code for as long as a whole step remains before ``end``. Gives the index, and the values that begin as
        ``start``: replace each in the list by its next one.
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

    def _inner(self, rows: int, blocks: int) -> Any:
        """``rows`` of x by ``blocks``: (x, weights, y, scales, inputs, outputs), pointers to the first of each."""
        function = self._function(f"rows{rows}_blocks{blocks}", self.none, [self.pointer] * 4 + [self.long] * 2)
        function.linkage = "internal"
        x, weights, y, scales, inputs, outputs = function.args
        b = self.ir.IRBuilder(function.append_basic_block())
        size = b.mul(inputs, self.long(LANES))
        starts = [self._at(b, weights, b.mul(size, self.long(block)), self.weight) for block in range(blocks)]
        x_rows = [self._at(b, x, b.mul(inputs, self.long(row)), self.single) for row in range(rows)]
        sums = [self.ir.Constant(self.vector, [0.0] * LANES)] * (rows * blocks)
        with self._loop(b, self.long(0), inputs, _STEPS, sums) as (k, values):
            for step in range(_STEPS):
                at = b.add(k, self.long(step))
                ahead = rows > 1 and step * LANES * self.bytes % _LINE == 0
                wide = [self._widened(b, start, at, ahead) for start in starts]
                for row, start in enumerate(x_rows):
                    number = self._everywhere(b, b.load(self._at(b, start, at, self.single), typ=self.single))
                    for i, weight in enumerate(wide, row * blocks):
                        values[i] = b.call(self.fma, [weight, number, values[i]])
        for i, value in enumerate(sums):
            row, first = i // blocks, self.long(i % blocks * LANES)
            if isinstance(self.weight, self.ir.IntType):
                scale = b.load(self._at(b, scales, first, self.single), align=4, typ=self.vector)
                value = b.fmul(value, scale)
            at = b.add(b.mul(outputs, self.long(row)), first)
            b.store(value, self._at(b, y, at, self.single), align=4)
        b.ret_void()
        return function

    def _at(self, b: Any, pointer: Any, index: Any, kind: Any) -> Any:
        return b.gep(pointer, [index], source_etype=kind)

    def _widened(self, b: Any, start: Any, k: Any, ahead: bool) -> Any:
        """The weights of input ``k`` in float32; ``ahead``: later ones are asked for."""
        at = self._at(b, start, b.mul(k, self.long(LANES)), self.weight)
        if ahead:
            later = self._at(b, at, self.long(_AHEAD // self.bytes), self.weight)
            b.call(self.prefetch, [later, self.int(0), self.int(3), self.int(1)])  # to read, into all caches, data
        found = b.load(at, align=4 * self.bytes, typ=self.ir.VectorType(self.weight, LANES))
        if isinstance(self.weight, self.ir.IntType):
            return b.sitofp(found, self.vector)
        return found if self.weight == self.single else b.fpext(found, self.vector)

    def _everywhere(self, b: Any, number: Any) -> Any:
        """A vector of one number."""
        undefined = self.ir.Constant(self.vector, self.ir.Undefined)
        places = self.ir.Constant(self.ir.VectorType(self.int, LANES), [0] * LANES)
        return b.shuffle_vector(b.insert_element(undefined, number, self.int(0)), undefined, places)

    def _multiply(self) -> None:
        function = self._function("multiply", self.none, [self.pointer])
        b = self.ir.IRBuilder(function.append_basic_block())
        places = [self._at(b, function.args[0], self.long(i), self.long) for i in range(len(_FIELDS))]
        given = {name: b.load(at, typ=self.long) for name, at in zip(_FIELDS, places)}
        given |= {name: b.inttoptr(given[name], self.pointer) for name in ("x", "weights", "y", "scales")}
        thread, threads = [b.sext(b.call(one, []), self.long) for one in self.openmp] or (self.long(0), self.long(1))
        first, end = self._part(b, given["blocks"], threads, thread)
        whole = b.sub(end, b.srem(b.sub(end, first), self.long(_CHUNK)))
        for begin, until, blocks in ((first, whole, _CHUNK), (whole, end, 1)):
            with self._loop(b, begin, until, blocks, []) as (block, _):
                self._all_rows(b, given, block, blocks)
        b.ret_void()

    def _part(self, b: Any, whole: Any, parts: Any, index: Any) -> tuple[Any, Any]:
        """The bounds of part ``index`` of ``whole``, cut into ``parts`` that differ by one at most."""
        first, end = (b.sdiv(b.mul(whole, b.add(index, self.long(more))), parts) for more in (0, 1))
        return first, end

    def _all_rows(self, b: Any, given: dict[str, Any], block: Any, blocks: int) -> None:
        """All rows by ``blocks`` from ``block`` on, in parts of up to MOST_ROWS: equal ones, since few sums wait for
        each other.
        """
        parts = b.sdiv(b.add(given["rows"], self.long(MOST_ROWS - 1)), self.long(MOST_ROWS))
        with self._loop(b, self.long(0), parts, 1, []) as (part, _):
            first, end = self._part(b, given["rows"], parts, part)
            after = b.append_basic_block()
            choice = b.switch(b.sub(end, first), after)
            for rows in range(1, MOST_ROWS + 1):
                case = b.append_basic_block()
                choice.add_case(self.long(rows), case)
                b.position_at_end(case)
                self._some_rows(b, given, first, rows, block, blocks)
                b.branch(after)
            b.position_at_end(after)

    def _some_rows(self, b: Any, given: dict[str, Any], row: Any, rows: int, block: Any, blocks: int) -> None:
        width = max(width for of, width in self.inner if of == rows and width <= blocks)
        outputs = b.mul(given["blocks"], self.long(LANES))
        x = self._at(b, given["x"], b.mul(row, given["inputs"]), self.single)
        for done in range(0, blocks, width):
            first = b.mul(b.add(block, self.long(done)), self.long(LANES))  # output
            weights = self._at(b, given["weights"], b.mul(first, given["inputs"]), self.weight)
            y = self._at(b, given["y"], b.add(b.mul(row, outputs), first), self.single)
            scales = self._at(b, given["scales"], first, self.single)
            b.call(self.inner[rows, width], [x, weights, y, scales, given["inputs"], outputs])
