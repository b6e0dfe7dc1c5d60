"""What a draft and its policy read from a row of logits, in one call, or at the end of a pass (layers.py): after that,
the CPU's caches do not have the code of numpy or torch. Before it, the best tokens of a screened head get their exact
logits.

Tokens are dealt to GROUPS groups in turn, and of each group the token with the highest rough logit gets its exact one,
the product of the head's input by the token's own row. One of a group is found in one reading of the logits, which the
best ones of all would not be.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np
import torch

from ...records.proposal import SHARPNESS
from . import Function, compiled, load
from .writer import LANES, LINE, LOWEST, Cpu, Writer

_POINTERS = ("row", "found", "token")
_FIELDS = (*_POINTERS, "n")
_NOWHERE = 2**31 - 1  # beyond every place
TOP = 10  # numbers that policies may read
_REFINED = ("hidden", "logits", "levels", "scales")
GROUPS = 128
_TOGETHER = 4  # exact logits, so that no sum waits for its last step


class Reading(NamedTuple):
    """Of a row of logits and a token, given by its index: the token's probability ``p``, and the ``margin``, ln p - ln
    p(its strongest rival) in nats, inf without a rival. With each logit counted from the highest one: their mean by
    probability, the sum of their exponentials, and that of these to the power SHARPNESS. The ``rival``'s index, as a
    float, and the margin over the strongest token ``beyond`` it.
    """

    token: int
    p: float
    margin: float
    mean: float
    total: float
    sharp: float
    rival: float
    beyond: float

    @property
    def entropy(self) -> float:
        """Of the distribution, in nats."""
        return max(0.0, math.log(self.total) - self.mean)


JUDGED = len(Reading._fields) - 1  # all but the token


class Readout:
    """Of one token in a row [n] float32."""

    def __init__(self, choose: Function, judge: Function, top: Function) -> None:
        self.functions = self._choose, self._judge = choose, judge
        self._top = top

    def choose(self, row: np.ndarray) -> int:
        """The first of the likeliest tokens of a row; of one without a highest number any."""
        row, token = np.ascontiguousarray(row), ctypes.c_int64()
        self._choose(_address(row), 0, ctypes.addressof(token), len(row))
        return token.value

    def __call__(self, row: np.ndarray, token: int) -> Reading:
        """The row's token is masked for a moment."""
        row, found, of = np.ascontiguousarray(row), (ctypes.c_float * JUDGED)(), ctypes.c_int64(token)
        self._judge(_address(row), ctypes.addressof(found), ctypes.addressof(of), len(row))
        return Reading(token, *found)

    def top(self, row: np.ndarray) -> np.ndarray:
        """The TOP largest numbers' exponentials, counted from the highest number, [TOP] float32, falling; 0 where the
        row has fewer. The row is masked for a moment.
        """
        row, found, token = np.ascontiguousarray(row), np.empty(LANES, dtype=np.float32), ctypes.c_int64()
        self._top(_address(row), _address(found), ctypes.addressof(token), len(row))
        found[len(row) :] = 0.0
        return found[:TOP]


def _address(row: np.ndarray) -> int:
    return row.__array_interface__["data"][0]  # faster than .ctypes


def _is_right(made: Readout) -> bool:
    """For rows that end within a vector, and for each token, likely or not."""
    row = (4 * np.random.default_rng(0).standard_normal(2 * LANES + 5)).astype(np.float32)
    p = np.exp(row) / np.exp(row).sum()
    below = row - row.max()
    sums = (p * below).sum(), np.exp(below).sum(), np.exp(SHARPNESS * below).sum()
    expected = []
    for token, own in enumerate(row):
        rival, third = [one for one in row.argsort()[::-1] if one != token][:2]
        expected.append((token, p[token], own - row[rival], *sums, rival, own - row[third]))
    turned = [np.roll(row, by) for by in range(len(row))]
    first = all(made.choose(np.append(one, one)) == one.argmax() for one in turned)
    top = np.allclose(made.top(row), np.exp(np.sort(row)[: -TOP - 1 : -1] - row.max()), rtol=1e-4)
    return first and top and np.allclose([made(row, token) for token in range(len(row))], expected, rtol=1e-4)


@compiled(_is_right)
def readout(cpu: Cpu) -> Readout:
    """That of this CPU; None where this CPU or LLVM cannot have it."""
    return Readout(**load(ReadoutWriter(cpu), cpu))


class ReadoutWriter(Writer):
    """``choose`` finds the likeliest token of a row, ``judge`` reads one, ``top`` takes the likeliest in turn. A row is
    read in whole vectors, the last one from a copy that ends with the lowest numbers.
    """

    def __init__(self, cpu: Cpu) -> None:
        super().__init__(cpu)
        self._choose()
        self._judge()
        self._top()

    def _begin(self, name: str) -> tuple[Any, dict[str, Any]]:
        b, given = self.entry(name, _FIELDS, _POINTERS)
        self.row, self.end = given["row"], given["n"]
        self.whole = b.mul(b.sdiv(self.end, self.long(LANES)), self.long(LANES))
        self.tail = self.room(b, self.single, self.long(LANES), 4)
        return b, given

    def _choose(self) -> None:
        b, given = self._begin("choose")
        b.store(self._first_of(b, self._highest(b)), given["token"])
        b.ret_void()

    def _first_of(self, b: Any, number: Any) -> Any:
        """The first place of a ``number`` that was just found in the row; of NaN any."""
        highest, places = self.everywhere(b, number), self.ir.VectorType(self.int, LANES)
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
        return b.select(found_one, place, self.long(0))

    def _judge(self) -> None:
        b, given = self._begin("judge")
        at, own = self._mask(b, b.load(given["token"], typ=self.long))  # so that the highest is that of the others
        rival = self._highest(b)
        place = self._first_of(b, rival)
        at_place, number = self._mask(b, place)
        beyond = self._highest(b)
        b.store(number, at_place)
        b.store(own, at)  # the last, as it is the rival of a row without others
        total, weighted, sharp = self._sums(b, b.select(b.fcmp_ordered(">", own, rival), own, rival))
        power = b.extract_element(self.exp(b, self._below(b, self.everywhere(b, own))), self.int(0))
        found = [b.fdiv(power, total), b.fsub(own, rival), b.fdiv(weighted, total), total, sharp]
        for i, number in enumerate([*found, b.sitofp(place, self.single), b.fsub(own, beyond)]):
            b.store(number, self.at(b, given["found"], self.long(i), self.single))
        b.ret_void()

    def _mask(self, b: Any, place: Any) -> tuple[Any, Any]:
        """Puts the lowest number there. Returns where that is, and what was there."""
        at = self.at(b, self.row, place, self.single)
        number = b.load(at, typ=self.single)
        b.store(self.ir.Constant(self.single, -math.inf), at)
        return at, number

    def _top(self) -> None:
        b, given = self._begin("top")
        fields, places = b.function.args[0], self.room(b, self.long, self.long(TOP), 8)
        n = b.select(b.icmp_signed("<", self.end, self.long(TOP)), self.end, self.long(TOP))
        self.put(b, self.constant(-math.inf), given["found"], self.long(0))
        with self.loop(b, self.long(0), n, 1, []) as (i, _):
            b.call(self.module.get_global("choose"), [fields])
            place = b.load(given["token"], typ=self.long)
            at = self.at(b, self.row, place, self.single)
            b.store(b.load(at, typ=self.single), self.at(b, given["found"], i, self.single))
            b.store(place, self.at(b, places, i, self.long))
            b.store(self.ir.Constant(self.single, -math.inf), at)
        # Backwards: where all that is left is -inf, a place comes again, and its own number must be the last put back.
        with self.loop(b, self.long(0), n, 1, []) as (i, _):
            last = b.sub(b.sub(n, self.long(1)), i)
            place = b.load(self.at(b, places, last, self.long), typ=self.long)
            b.store(self.number(b, given["found"], last), self.at(b, self.row, place, self.single))
        self.highest = self.everywhere(b, b.load(given["found"], typ=self.single))
        powers = self.exp(b, self._below(b, self.vector_at(b, given["found"], self.long(0))))
        self.put(b, powers, given["found"], self.long(0))
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

    def _sums(self, b: Any, highest: Any) -> list[Any]:
        """Of the exponentials of all numbers, counted from the ``highest``, of these times the numbers, and of these to
        the power SHARPNESS.
        """
        self.highest = self.everywhere(b, highest)

        def added(numbers: Any, total: Any, weighted: Any, sharp: Any) -> list[Any]:
            below = self._below(b, numbers)
            powers, raised = self.exp(b, below), self.exp(b, b.fmul(below, self.constant(SHARPNESS)))
            return [b.fadd(total, powers), b.call(self.fma, [powers, below, weighted]), b.fadd(sharp, raised)]

        sums = added(self._copy_tail(b), self.zero, self.zero, self.zero)
        with self.loop(b, self.long(0), self.whole, LANES, sums) as (i, values):
            values[:] = added(self.vector_at(b, self.row, i), *values)
        return [self.sum_of(b, one) for one in sums]

    def _below(self, b: Any, numbers: Any) -> Any:
        """``numbers`` counted from the highest one, those far below from where the exponential is nearly 0."""
        below, lowest = b.fsub(numbers, self.highest), self.constant(LOWEST)
        return b.select(b.fcmp_ordered("<", below, lowest), lowest, below)


class Refinement:
    """Of the ``logits`` [rows, n] float32, in place: ``hidden`` [rows, size] float32 by int8 rows [n, size], each times
    its scale [n] float32. n must be a multiple of GROUPS, and size of LANES; a row's bits do not depend on the others.
    """

    def __init__(self, refine: Function) -> None:
        self.function = refine

    def __call__(self, hidden: torch.Tensor, logits: torch.Tensor, levels: torch.Tensor, scales: torch.Tensor) -> None:
        hidden, (rows, n) = hidden.contiguous(), logits.shape
        pointers = (one.data_ptr() for one in (hidden, logits, levels, scales))
        size = levels.shape[1]
        self.function(*pointers, rows, n, size, parts=GROUPS // LANES, work=rows * GROUPS * size)


def _refines(made: Refinement) -> bool:
    """Of each group one logit is exact, and it is that of the group's best token."""
    generator, n, size = torch.Generator().manual_seed(0), 3 * GROUPS, 2 * LANES
    hidden, rough = (torch.randn(2, one, generator=generator, dtype=torch.float32) for one in (size, n))
    levels = torch.randint(-127, 128, (n, size), generator=generator, dtype=torch.int8)
    scales = torch.rand(n, generator=generator, dtype=torch.float32)
    exact = hidden @ (levels * scales[:, None]).t()
    best = rough.view(2, -1, GROUPS).argmax(1) * GROUPS + torch.arange(GROUPS)
    expected = rough.scatter(1, best, exact.gather(1, best))
    made(hidden, rough, levels, scales)
    return torch.allclose(rough, expected, rtol=1e-4, atol=1e-3)


@compiled(_refines)
def refinement(cpu: Cpu) -> Refinement:
    """That of this CPU; None where this CPU or LLVM cannot have it."""
    return Refinement(load(RefinementWriter(cpu), cpu)["refine"])


class RefinementWriter(Writer):
    """``refine`` takes this thread's part of the groups. All their tokens are found before the first product: meanwhile
    memory delivers the tokens' rows, which lie apart.
    """

    def __init__(self, cpu: Cpu) -> None:
        super().__init__(cpu)
        self.byte = self.ir.IntType(8)
        b, given = self.entry("refine", (*_REFINED, "rows", "n", "size"), _REFINED)
        self.given, tokens = given, self.room(b, self.long, self.long(GROUPS), 8)
        first, end = (b.mul(part, self.long(LANES)) for part in self.mine(b, self.long(GROUPS // LANES)))
        with self.loop(b, self.long(0), given["rows"], 1, []) as (row, _):
            logits = self.at(b, given["logits"], b.mul(row, given["n"]), self.single)
            hidden = self.at(b, given["hidden"], b.mul(row, given["size"]), self.single)
            with self.loop(b, first, end, LANES, []) as (group, _):
                self._find(b, logits, group, tokens)
            with self.loop(b, first, end, _TOGETHER, []) as (group, _):
                places = (b.add(group, self.long(more)) for more in range(_TOGETHER))
                some = [b.load(self.at(b, tokens, place, self.long), typ=self.long) for place in places]
                for token, logit in zip(some, self._exact(b, hidden, some)):
                    b.store(logit, self.at(b, logits, token, self.single))
        b.ret_void()

    def _find(self, b: Any, logits: Any, group: Any, tokens: Any) -> None:
        """Of LANES groups from ``group`` on the token with the highest logit, and its row on the way."""
        kind, n = self.ir.VectorType(self.int, LANES), self.given["n"]
        found = [self.vector_at(b, logits, group), self.ir.Constant(kind, [0] * LANES)]
        with self.loop(b, self.long(GROUPS), n, GROUPS, found) as (start, values):
            numbers, at = self.vector_at(b, logits, b.add(start, group)), self.everywhere(b, b.trunc(start, self.int))
            higher = b.fcmp_ordered(">", numbers, values[0])
            values[:] = b.select(higher, numbers, values[0]), b.select(higher, at, values[1])
        for lane in range(LANES):
            own = b.add(group, self.long(lane))
            token = b.add(own, b.sext(b.extract_element(found[1], self.int(lane)), self.long))
            b.store(token, self.at(b, tokens, own, self.long))
            row = self._row(b, token)
            with self.loop(b, self.long(0), self.given["size"], LINE, []) as (i, _):
                self.ask(b, self.at(b, row, i, self.byte))

    def _row(self, b: Any, token: Any) -> Any:
        return self.at(b, self.given["levels"], b.mul(token, self.given["size"]), self.byte)

    def _exact(self, b: Any, hidden: Any, tokens: list[Any]) -> list[Any]:
        """The logits of ``tokens``."""
        sums, rows = [self.zero] * len(tokens), [self._row(b, token) for token in tokens]
        with self.loop(b, self.long(0), self.given["size"], LANES, sums) as (i, values):
            x = self.vector_at(b, hidden, i)
            for place, row in enumerate(rows):
                levels = b.load(self.at(b, row, i, self.byte), align=1, typ=self.ir.VectorType(self.byte, LANES))
                values[place] = b.call(self.fma, [x, b.sitofp(levels, self.vector), values[place]])
        scales = (self.number(b, self.given["scales"], token) for token in tokens)
        return [b.fmul(self.sum_of(b, total), scale) for total, scale in zip(sums, scales)]
