"""What policies read from a row of a draft's logits, in one call: after a pass, the CPU's caches do not have the code
of numpy or torch.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ...cpu import imitated
from . import Function, compiled, load
from .writer import LANES, Writer

_POINTERS = ("row", "found")
_FIELDS = (*_POINTERS, "n", "token")


class Readout:
    """Of one token in a row [n] float32."""

    def __init__(self, judge: Function) -> None:
        self._judge = judge

    def __call__(self, row: np.ndarray, token: int) -> tuple[float, float]:
        """p(token) under softmax(row), and ln p(token) - ln p(its strongest rival) in nats, inf without a rival. The
        row's token is masked for a moment.
        """
        row, found = np.ascontiguousarray(row), np.empty(2, dtype=np.float32)
        row_at, found_at = (one.__array_interface__["data"][0] for one in (row, found))  # faster than .ctypes
        self._judge(row_at, found_at, len(row), token)
        p, margin = found.tolist()
        return p, margin


def readout() -> Readout | None:
    """That of this CPU; None where this CPU or LLVM cannot have it."""
    return None if imitated() == "plain" else _readout_for(imitated())


@cache
def _readout_for(cpu_class: str) -> Readout | None:
    return compiled(lambda cpu: Readout(load(ReadoutWriter(cpu.triple), cpu)["judge"]), _is_right)


def _is_right(made: Readout) -> bool:
    """For rows that end within a vector, and for each token, likely or not."""
    row = (4 * np.random.default_rng(0).standard_normal(2 * LANES + 5)).astype(np.float32)
    p = np.exp(row) / np.exp(row).sum()
    expected = [(p[token], row[token] - np.delete(row, token).max()) for token in range(len(row))]
    return np.allclose([made(row, token) for token in range(len(row))], expected, rtol=1e-4)


class ReadoutWriter(Writer):
    """``judge`` reads a row in whole vectors, the last one from a copy that ends with the lowest numbers."""

    def __init__(self, triple: str) -> None:
        super().__init__(triple, shared=False)
        b, given = self.entry("judge", _FIELDS, _POINTERS)
        self.row, self.end = given["row"], given["n"]
        self.whole = b.mul(b.sdiv(self.end, self.long(LANES)), self.long(LANES))
        self.tail = self.room(b, self.single, self.long(LANES), 4)
        at = self.at(b, self.row, given["token"], self.single)
        own = b.load(at, typ=self.single)
        b.store(self.ir.Constant(self.single, -math.inf), at)  # so that the highest is that of the others
        rival = self._highest(b)
        b.store(own, at)
        total = self._sum_of_powers(b, b.select(b.fcmp_ordered(">", own, rival), own, rival))
        power = b.extract_element(self._powers(b, self.everywhere(b, own)), self.int(0))
        b.store(b.fdiv(power, total), given["found"])
        b.store(b.fsub(own, rival), self.at(b, given["found"], self.long(1), self.single))
        b.ret_void()

    def _copy_tail(self, b: Any) -> Any:
        self.put(b, self.constant(-math.inf), self.tail, self.long(0))
        with self.loop(b, self.whole, self.end, 1, []) as (i, _):
            b.store(self.number(b, self.row, i), self.at(b, self.tail, b.sub(i, self.whole), self.single))
        return self.vector_at(b, self.tail, self.long(0))

    def _highest(self, b: Any) -> Any:
        found = [self._copy_tail(b)]
        with self.loop(b, self.long(0), self.whole, LANES, found) as (i, values):
            number = self.vector_at(b, self.row, i)
            values[0] = b.select(b.fcmp_ordered(">", number, values[0]), number, values[0])
        return self.largest(b, found[0])

    def _sum_of_powers(self, b: Any, highest: Any) -> Any:
        self.highest = self.everywhere(b, highest)
        sums = [self._powers(b, self._copy_tail(b))]
        with self.loop(b, self.long(0), self.whole, LANES, sums) as (i, values):
            values[0] = b.fadd(values[0], self._powers(b, self.vector_at(b, self.row, i)))
        return self.sum_of(b, sums[0])

    def _powers(self, b: Any, numbers: Any) -> Any:
        return self.exp(b, b.fsub(numbers, self.highest))
