"""Attention of few or many rows over a KV cache in float32: softmax(Q K^T / sqrt(d)) V, one row and head at a time.

A row reads the keys in the order of its own text, whatever their places in the cache, and the sums of a score and of
the values add up in that order. So a row's bits do not depend on the other rows of its pass, and in a tree they are
those of a plain pass.

Keys are [kv heads, capacity / LANES, d, LANES], so that a step scores LANES keys; values [kv heads, d / LANES,
capacity, LANES].
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from ...cpu import imitated
from . import Cpu, Function, compiled, find_openmp, load
from .writer import LANES, Writer

_CHUNK = 4  # blocks of keys or values at a time: more sums than one, which would wait for each other
_POINTERS = ("heads", "keys", "values", "out", "seen", "places")
_FIELDS = (*_POINTERS, "rows", "start", "capacity", "n_heads", "n_kv_heads", "d")
SEEN = 4  # numbers of a row: its trunk's length; first and end of its path among ``places``; keys to be scored


class AttentionKernel:
    """Attention over a cache ``keys``, ``values``, of the queries, keys and values ``heads`` [n, Hq + 2 Hkv, d] of rows
    from ``start`` on. All are float32.
    """

    def __init__(self, store: Function, attend: Function) -> None:
        self.functions = self._store, self._attend = store, attend

    def store(self, heads: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int) -> None:
        """Writes the rows' keys and values."""
        heads = heads.contiguous()
        n, width, d = heads.shape
        pointers = heads.data_ptr(), keys.data_ptr(), values.data_ptr(), 0, 0, 0
        n_kv_heads, _, capacity, _ = values.shape
        self._store(*pointers, n, start, capacity, width - 2 * n_kv_heads, n_kv_heads, d)

    def attend(
        self,
        heads: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        length: int,
        seen: torch.Tensor,
        places: torch.Tensor,
    ) -> torch.Tensor:
        """[n, Hq d], over the first ``length`` rows of the cache. Row i sees the keys before ``seen[i, 0]``, then those
        at ``places[seen[i, 1] : seen[i, 2]]``; all are before ``seen[i, 3]``. Both are int64.
        """
        heads = heads.contiguous()
        n, width, d = heads.shape
        n_kv_heads, _, capacity, _ = values.shape
        n_heads = width - 2 * n_kv_heads
        out = torch.empty(n, n_heads * d, dtype=torch.float32)  # the default may be another one for a while
        pointers = (one.data_ptr() for one in (heads, keys, values, out, seen, places))
        work = 2 * n * n_heads * d * length
        self._attend(*pointers, n, 0, capacity, n_heads, n_kv_heads, d, parts=n * n_heads, work=work)
        return out


def attention_kernel() -> AttentionKernel | None:
    """The attention of this CPU; None where this CPU or LLVM cannot have it."""
    return None if imitated() == "plain" else _kernel_for(imitated())


@cache
def _kernel_for(cpu_class: str) -> AttentionKernel | None:
    def make(cpu: Cpu) -> AttentionKernel:
        functions = load(AttentionWriter(cpu.triple, shared=find_openmp() is not None), cpu)
        return AttentionKernel(functions["store"], functions["attend"])

    return compiled(make, _is_right)


def _is_right(made: AttentionKernel) -> bool:
    """Twenty rows of two query heads over one key head; then the last row again, which sees the second half by path."""
    n, d, single = 20, 2 * LANES, torch.float32
    heads = torch.randn(n, 4, d, generator=torch.Generator().manual_seed(0), dtype=single)
    keys = torch.zeros(1, 2, d, LANES, dtype=single)
    values = torch.zeros(1, d // LANES, 2 * LANES, LANES, dtype=single)
    made.store(heads, keys, values, 0)
    places = torch.arange(n)
    plain = torch.tensor([[row + 1, 0, 0, row + 1] for row in range(n)])
    found = made.attend(heads, keys, values, n, plain, places)
    by_path = made.attend(heads[-1:], keys, values, n, torch.tensor([[n // 2, n // 2, n, n]]), places)
    query, key, value = heads[:, :2].transpose(0, 1), heads[:, 2], heads[:, 3]
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    p = torch.softmax((query @ key.T / d**0.5).masked_fill(hidden, float("-inf")), -1)
    right = torch.allclose(found, (p @ value).transpose(0, 1).reshape(n, -1), rtol=1e-4, atol=1e-5)
    return right and torch.equal(by_path, found[-1:])


class AttentionWriter(Writer):
    """``store`` writes the rows' keys and values; ``attend`` takes this thread's pairs of a row and a query head."""

    def __init__(self, triple: str, shared: bool) -> None:
        super().__init__(triple, shared)
        self.lanes = self.ir.Constant(self.ir.VectorType(self.long, LANES), list(range(LANES)))
        self._store()
        self._attend()

    def _store(self) -> None:
        b, given = self.entry("store", _FIELDS, _POINTERS)
        size, width = self._sizes(b, given)
        with self.loop(b, self.long(0), given["rows"], 1, []) as (row, _):
            place = b.add(given["start"], row)
            block, lane = b.sdiv(place, self.long(LANES)), b.srem(place, self.long(LANES))
            with self.loop(b, self.long(0), given["n_kv_heads"], 1, []) as (head, _):
                of = b.add(b.mul(row, width), b.add(given["n_heads"], head))
                key = self.at(b, given["heads"], b.mul(of, given["d"]), self.single)
                value = self.at(b, key, b.mul(given["n_kv_heads"], given["d"]), self.single)
                lanes = b.add(b.mul(b.mul(block, given["d"]), self.long(LANES)), lane)
                keys = self.at(b, given["keys"], b.add(b.mul(head, size), lanes), self.single)
                with self.loop(b, self.long(0), given["d"], 1, []) as (i, _):
                    b.store(self.number(b, key, i), self.at(b, keys, b.mul(i, self.long(LANES)), self.single))
                with self.loop(b, self.long(0), given["d"], LANES, []) as (i, _):
                    to = b.add(b.mul(i, given["capacity"]), b.mul(place, self.long(LANES)))
                    self.put(b, self.vector_at(b, value, i), given["values"], b.add(b.mul(head, size), to))
        b.ret_void()

    def _attend(self) -> None:
        b, given = self.entry("attend", _FIELDS, _POINTERS)
        size, width = self._sizes(b, given)
        group = b.sdiv(given["n_heads"], given["n_kv_heads"])
        scores = self.room(b, self.single, given["capacity"], 4 * LANES)
        scale = b.fdiv(self.ir.Constant(self.single, 1.0), b.call(self.root, [b.sitofp(given["d"], self.single)]))
        first, end = self.mine(b, b.mul(given["rows"], given["n_heads"]))
        with self.loop(b, first, end, 1, []) as (pair, _):
            row, head = b.sdiv(pair, given["n_heads"]), b.srem(pair, given["n_heads"])
            query = self.at(b, given["heads"], b.mul(b.add(b.mul(row, width), head), given["d"]), self.single)
            held = b.mul(b.sdiv(head, group), size)
            keys, values = (self.at(b, given[name], held, self.single) for name in ("keys", "values"))
            at = self.at(b, given["seen"], b.mul(row, self.long(SEEN)), self.long)
            trunk, path, last, reach = (
                b.load(self.at(b, at, self.long(i), self.long), typ=self.long) for i in range(SEEN)
            )
            length = b.add(trunk, b.sub(last, path))
            self._score(b, query, keys, given["d"], reach, scores)
            with self.loop(b, path, last, 1, []) as (step, _):  # into the order of the row's text, in place
                place = b.load(self.at(b, given["places"], step, self.long), typ=self.long)
                to = self.at(b, scores, b.add(trunk, b.sub(step, path)), self.single)
                b.store(self.number(b, scores, place), to)
            total = self._exponentials(b, scores, length, self.everywhere(b, scale))
            out = self.at(b, given["out"], b.mul(pair, given["d"]), self.single)
            self._sum_values(b, given, values, scores, (trunk, path, last), total, out)
        b.ret_void()

    def _sizes(self, b: Any, given: dict[str, Any]) -> tuple[Any, Any]:
        """The numbers in a head's keys, or values; the heads of a row."""
        width = b.add(given["n_heads"], b.mul(given["n_kv_heads"], self.long(2)))
        return b.mul(given["capacity"], given["d"]), width

    def _in_chunks(self, b: Any, end: Any) -> Any:
        """Loops over the whole chunks before ``end``, then over what is left: (first, end, how many at a time)."""
        whole = b.sub(end, b.srem(end, self.long(_CHUNK)))
        return (self.long(0), whole, _CHUNK), (whole, end, 1)

    def _score(self, b: Any, query: Any, keys: Any, d: Any, reach: Any, scores: Any) -> None:
        """The products of ``query`` by the keys before ``reach``, and by the rest of its block."""
        blocks = b.sdiv(self._whole(b, reach), self.long(LANES))
        for first, end, at_once in self._in_chunks(b, blocks):
            with self.loop(b, first, end, at_once, []) as (block, _):
                size = b.mul(d, self.long(LANES))
                starts = [
                    self.at(b, keys, b.mul(size, b.add(block, self.long(i))), self.single) for i in range(at_once)
                ]
                sums = [self.zero] * at_once
                with self.loop(b, self.long(0), d, 1, sums) as (i, values):
                    number = self.everywhere(b, self.number(b, query, i))
                    for j, start in enumerate(starts):
                        key = self.vector_at(b, start, b.mul(i, self.long(LANES)))
                        values[j] = b.call(self.fma, [key, number, values[j]])
                for i, value in enumerate(sums):
                    self.put(b, value, scores, b.mul(b.add(block, self.long(i)), self.long(LANES)))

    def _exponentials(self, b: Any, scores: Any, length: Any, scale: Any) -> Any:
        """Replaces the first ``length`` scores s by exp(scale (s - the largest)), and the rest of the last block by
        zeros. Returns the sum of all.
        """
        lowest = self.ir.Constant(self.vector, [-3e38] * LANES)
        largest = [lowest]
        with self.loop(b, self.long(0), self._whole(b, length), LANES, largest) as (at, values):
            found = b.select(self._before(b, at, length), self.vector_at(b, scores, at), lowest)
            values[0] = b.select(b.fcmp_ordered(">", found, values[0]), found, values[0])
        highest, sums = self.everywhere(b, self.largest(b, largest[0])), [self.zero]
        with self.loop(b, self.long(0), self._whole(b, length), LANES, sums) as (at, values):
            found = self.exp(b, b.fmul(b.fsub(self.vector_at(b, scores, at), highest), scale))
            found = b.select(self._before(b, at, length), found, self.zero)
            self.put(b, found, scores, at)
            values[0] = b.fadd(values[0], found)
        return self.sum_of(b, sums[0])

    def _whole(self, b: Any, n: Any) -> Any:
        """``n`` up to whole blocks."""
        return b.mul(b.sdiv(b.add(n, self.long(LANES - 1)), self.long(LANES)), self.long(LANES))

    def _before(self, b: Any, first: Any, end: Any) -> Any:
        """Which of LANES places from ``first`` on are before ``end``."""
        return b.icmp_signed("<", b.add(self.lanes, self.everywhere(b, first)), self.everywhere(b, end))

    def _sum_values(
        self, b: Any, given: dict[str, Any], values: Any, p: Any, seen: tuple[Any, Any, Any], total: Any, out: Any
    ) -> None:
        """The values of the trunk and the path, weighted by ``p``, over ``total``."""
        trunk, path, last = seen
        blocks, divisor = b.sdiv(given["d"], self.long(LANES)), self.everywhere(b, total)
        for first, end, at_once in self._in_chunks(b, blocks):
            with self.loop(b, first, end, at_once, []) as (block, _):
                size = b.mul(given["capacity"], self.long(LANES))
                starts = [
                    self.at(b, values, b.mul(size, b.add(block, self.long(i))), self.single) for i in range(at_once)
                ]
                sums = [self.zero] * at_once
                with self.loop(b, self.long(0), trunk, 1, sums) as (place, found):
                    self._add(b, starts, place, self.number(b, p, place), found)
                with self.loop(b, path, last, 1, sums) as (step, found):
                    place = b.load(self.at(b, given["places"], step, self.long), typ=self.long)
                    self._add(b, starts, place, self.number(b, p, b.add(trunk, b.sub(step, path))), found)
                for i, value in enumerate(sums):
                    to = b.mul(b.add(block, self.long(i)), self.long(LANES))
                    self.put(b, b.fdiv(value, divisor), out, to)

    def _add(self, b: Any, starts: list[Any], place: Any, weight: Any, sums: list[Any]) -> None:
        number = self.everywhere(b, weight)
        for i, start in enumerate(starts):
            value = self.vector_at(b, start, b.mul(place, self.long(LANES)))
            sums[i] = b.call(self.fma, [value, number, sums[i]])
