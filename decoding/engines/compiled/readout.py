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
        self.lowest = self.constant(-math.inf)
        self._choose()
        self._judge()
        self._top()

    def _begin(self, name: str) -> tuple[dict[str, Any], Any]:
        given, arguments = self.entry(name, _FIELDS, _POINTERS)
        self.row, self.end = given["row"], given["n"]
        self.whole = self.end // LANES * LANES
        self.tail = self.room(self.single, LANES, 4)
        return given, arguments

    def _choose(self) -> None:
        given, _ = self._begin("choose")
        given["token"].of(self.long)[0] = self._first_of(self._highest())
        self.b.ret_void()

    def _first_of(self, number: Any) -> Any:
        """The first place of a ``number`` that was just found in the row; of NaN any."""
        highest, places = self.everywhere(number), self.ir.VectorType(self.int, LANES)
        lanes, none = (self.constant(numbers, places) for numbers in (list(range(LANES)), _NOWHERE))

        def first(numbers: Any, start: Any, found: Any) -> Any:
            at = self.everywhere(start.to(self.int, "trunc")) + lanes
            return self.smaller(self.select(numbers.equals(highest), at, none), found)

        found = [first(self.tail.vector(0), self.whole, none)]
        with self.loop(0, self.whole, LANES, found) as (i, values):
            values[0] = first(self.row.vector(i), i, values[0])
        token = self.constant(_NOWHERE, self.int)
        for at in (found[0][i] for i in range(LANES)):
            token = self.smaller(at, token)
        place = token.to(self.long, "sext")
        return self.select(place < self.end, place, 0)  # not where all numbers are NaN

    def _judge(self) -> None:
        given, _ = self._begin("judge")
        token = given["token"].of(self.long)[0]
        own = self._mask(token)  # so that the highest is that of the others
        rival = self._highest()
        place = self._first_of(rival)
        number = self._mask(place)
        beyond = self._highest()
        self.row[place] = number
        self.row[token] = own  # the last, as it is the rival of a row without others
        total, weighted, sharp = self._sums(self.larger(own, rival))
        power = self.exp(self._below(self.everywhere(own)))[0]
        found = [power / total, own - rival, weighted / total, total, sharp]
        for i, number in enumerate([*found, place.to(self.single, "sitofp"), own - beyond]):
            given["found"][i] = number
        self.b.ret_void()

    def _mask(self, place: Any) -> Any:
        """Puts the lowest number there. Returns what was there."""
        number = self.row[place]
        self.row[place] = -math.inf
        return number

    def _top(self) -> None:
        choose = self.caller(self.module.get_global("choose"))
        given, fields = self._begin("top")
        places, token, found = self.room(self.long, TOP, 8), given["token"].of(self.long), given["found"]
        n = self.smaller(self.end, self.constant(TOP, self.long))
        found.put(self.lowest, 0)
        with self.each(n) as i:
            choose(fields)
            found[i] = self._mask(token[0])
            places[i] = token[0]
        # Backwards: where all that is left is -inf, a place comes again, and its own number must be the last put back.
        with self.each(n) as i:
            last = n - 1 - i
            self.row[places[last]] = found[last]
        self.highest = self.everywhere(found[0])
        found.put(self.exp(self._below(found.vector(0))), 0)
        self.b.ret_void()

    def _copy_tail(self) -> Any:
        self.tail.put(self.lowest, 0)
        with self.each(self.end, 1, self.whole) as i:
            self.tail[i - self.whole] = self.row[i]
        return self.tail.vector(0)

    def _highest(self) -> Any:
        found = [self._copy_tail()]
        with self.loop(0, self.whole, LANES, found) as (i, values):
            values[0] = self.larger(self.row.vector(i), values[0])
        return self.largest(found[0])

    def _sums(self, highest: Any) -> list[Any]:
        """Of the exponentials of all numbers, counted from the ``highest``, of these times the numbers, and of these to
        the power SHARPNESS.
        """
        self.highest = self.everywhere(highest)

        def added(numbers: Any, total: Any, weighted: Any, sharp: Any) -> list[Any]:
            below = self._below(numbers)
            powers, raised = self.exp(below), self.exp(below * SHARPNESS)
            return [total + powers, self.fma(powers, below, weighted), sharp + raised]

        sums = added(self._copy_tail(), self.zero, self.zero, self.zero)
        with self.loop(0, self.whole, LANES, sums) as (i, values):
            values[:] = added(self.row.vector(i), *values)
        return [self.sum_of(one) for one in sums]

    def _below(self, numbers: Any) -> Any:
        """``numbers`` counted from the highest one, those far below from where the exponential is nearly 0."""
        below = numbers - self.highest
        return self.select(below < LOWEST, LOWEST, below)


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
        self.given, _ = self.entry("refine", (*_REFINED, "rows", "n", "size"), _REFINED)
        given, tokens = self.given, self.room(self.long, GROUPS, 8)
        first, end = (part * LANES for part in self.mine(GROUPS // LANES))
        with self.each(given["rows"]) as row:
            logits, hidden = (given[name] + row * given[size] for name, size in (("logits", "n"), ("hidden", "size")))
            with self.each(end, LANES, first) as group:
                self._find(logits, group, tokens)
            with self.each(end, _TOGETHER, first) as group:
                some = [tokens[group + more] for more in range(_TOGETHER)]
                for token, logit in zip(some, self._exact(hidden, some)):
                    logits[token] = logit
        self.b.ret_void()

    def _find(self, logits: Any, group: Any, tokens: Any) -> None:
        """Of LANES groups from ``group`` on the token with the highest logit, and its row on the way."""
        found = [logits.vector(group), self.constant(0, self.ir.VectorType(self.int, LANES))]
        with self.loop(GROUPS, self.given["n"], GROUPS, found) as (start, values):
            numbers, at = logits.vector(start + group), self.everywhere(start.to(self.int, "trunc"))
            higher = numbers > values[0]
            values[:] = self.select(higher, numbers, values[0]), self.select(higher, at, values[1])
        for lane in range(LANES):
            own = group + lane
            tokens[own] = token = own + found[1][lane].to(self.long, "sext")
            row = self._row(token)
            with self.each(self.given["size"], LINE) as i:
                self.ask(row + i)

    def _row(self, token: Any) -> Any:
        return self.given["levels"].of(self.byte) + token * self.given["size"]

    def _exact(self, hidden: Any, tokens: list[Any]) -> list[Any]:
        """The logits of ``tokens``."""
        sums, rows = [self.zero] * len(tokens), [self._row(token) for token in tokens]
        with self.loop(0, self.given["size"], LANES, sums) as (i, values):
            x = hidden.vector(i)
            for place, row in enumerate(rows):
                levels = row.vector(i, self.ir.VectorType(self.byte, LANES), 1)
                values[place] = self.fma(x, levels.to(self.vector, "sitofp"), values[place])
        scales = (self.given["scales"][token] for token in tokens)
        return [self.sum_of(total) * scale for total, scale in zip(sums, scales)]
