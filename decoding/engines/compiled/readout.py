"""What a draft and its policy read from a row of logits, in one call, or at the end of a pass (layers.py): after that,
the CPU's caches do not have the code of numpy or torch.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...cpu import imitated
from . import Function, compiled, load
from .writer import LANES, Writer

_POINTERS = ("row", "found", "token")
_FIELDS = (*_POINTERS, "n")
_NOWHERE = 2**31 - 1


class Likeliest(NamedTuple):
    """Of one row of logits the index of the likeliest, the first of equals; its probability ``p``, and the ``margin``,
    ln p - ln p(its strongest rival) in nats.
    """

    choice: int
    p: float
    margin: float


class Readout:
    """Of one token in a row [n] float32."""

    def __init__(self, choose: Function, judge: Function) -> None:
        self.functions = self._choose, self._judge = choose, judge

    def choose(self, row: np.ndarray) -> int:
        """The first of the likeliest tokens of a row without NaN."""
        row, token = np.ascontiguousarray(row), ctypes.c_int64()
        self._choose(_address(row), 0, ctypes.addressof(token), len(row))
        return token.value

    def __call__(self, row: np.ndarray, token: int) -> tuple[float, float]:
        """p(token) under softmax(row), and ln p(token) - ln p(its strongest rival) in nats, inf without a rival. The
        row's token is masked for a moment.
        """
        row, found, of = np.ascontiguousarray(row), (ctypes.c_float * 2)(), ctypes.c_int64(token)
        self._judge(_address(row), ctypes.addressof(found), ctypes.addressof(of), len(row))
        p, margin = found
        return p, margin


def _address(row: np.ndarray) -> int:
    return row.__array_interface__["data"][0]  # faster than .ctypes


def readout() -> Readout | None:
    """That of this CPU; None where this CPU or LLVM cannot have it."""
    return None if imitated() == "plain" else _readout_for(imitated())


@cache
def _readout_for(cpu_class: str) -> Readout | None:
    return compiled(lambda cpu: Readout(**load(ReadoutWriter(cpu.triple), cpu)), _is_right)


def _is_right(made: Readout) -> bool:
    """For rows that end within a vector, and for each token, likely or not."""
    row = (4 * np.random.default_rng(0).standard_normal(2 * LANES + 5)).astype(np.float32)
    p = np.exp(row) / np.exp(row).sum()
    expected = [(p[token], row[token] - np.delete(row, token).max()) for token in range(len(row))]
    turned = [np.roll(row, by) for by in range(len(row))]
    first = all(made.choose(np.append(one, one)) == one.argmax() for one in turned)
    return first and np.allclose([made(row, token) for token in range(len(row))], expected, rtol=1e-4)


class ReadoutWriter(Writer):
    """``choose`` finds the likeliest token of a row, ``judge`` its probability or another's. A row is read in whole
    vectors, the last one from a copy that ends with the lowest numbers.
    """

    def __init__(self, triple: str) -> None:
        super().__init__(triple, shared=False)
        self._choose()
        self._judge()

    def _begin(self, name: str) -> tuple[Any, dict[str, Any]]:
        b, given = self.entry(name, _FIELDS, _POINTERS)
        self.row, self.end = given["row"], given["n"]
        self.whole = b.mul(b.sdiv(self.end, self.long(LANES)), self.long(LANES))
        self.tail = self.room(b, self.single, self.long(LANES), 4)
        return b, given

    def _choose(self) -> None:
        b, given = self._begin("choose")
        highest, places = self.everywhere(b, self._highest(b)), self.ir.VectorType(self.int, LANES)
        lanes, none = (self.ir.Constant(places, numbers) for numbers in (list(range(LANES)), [_NOWHERE] * LANES))

        def first(numbers: Any, start: Any, found: Any) -> Any:
            at = b.add(self.everywhere(b, b.trunc(start, self.int)), lanes)
            at = b.select(b.fcmp_ordered("==", numbers, highest), at, none)
            return b.select(b.icmp_signed("<", at, found), at, found)

        found = [first(self.vector_at(b, self.tail, self.long(0)), self.whole, none)]
        with self.loop(b, self.long(0), self.whole, LANES, found) as (i, values):
            values[0] = first(self.vector_at(b, self.row, i), i, values[0])
        token = self.int(_NOWHERE)
        for at in (b.extract_element(found[0], self.int(i)) for i in range(LANES)):
            token = b.select(b.icmp_signed("<", at, token), at, token)
        place = b.sext(token, self.long)
        found_one = b.icmp_signed("<", place, self.end)  # not where all numbers are NaN
        b.store(b.select(found_one, place, self.long(0)), given["token"])
        b.ret_void()

    def _judge(self) -> None:
        b, given = self._begin("judge")
        at = self.at(b, self.row, b.load(given["token"], typ=self.long), self.single)
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
