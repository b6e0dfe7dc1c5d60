"""Attention of few or many rows over a KV cache in float32: softmax(Q K^T / sqrt(d)) V.

A row reads the keys in the order of its own text, whatever their places in the cache, and the sums of a score and of
the values add up in that order. So a row's bits do not depend on the other rows of its pass, and in a tree they are
those of a plain pass. Several queries, of one row or more, meet each key and value while it is in registers.

Keys are [kv heads, capacity / LANES, d, LANES], so that a step scores LANES keys; values [kv heads, d / LANES,
capacity, LANES].
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from . import Function, compiled, load
from .writer import LANES, Cpu, Writer

_QUERIES = 6  # of one key head, at a time
_CHUNK = 4  # blocks of keys or values at a time: more sums than one, which would wait for each other
_POINTERS = ("heads", "keys", "values", "out", "seen", "places")
_FIELDS = (*_POINTERS, "rows", "start", "capacity", "n_heads", "n_kv_heads", "d")
SEEN = 4  # numbers of a row: its trunk's length; first and end of its path among ``places``; keys to be scored
_QUERY = ("query", "out", "trunk", "path", "last", "reach")  # two addresses, and what its row sees


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
        self._attend(*pointers, n, length - n, capacity, n_heads, n_kv_heads, d, parts=n * n_heads, work=work)
        return out


@cache
def chains(capacity: int) -> torch.Tensor:
    """What the rows of a chain see, all keys up to their own, as :meth:`AttentionKernel.attend` takes it: [n, SEEN]."""
    ends = torch.arange(1, capacity + 1)
    none = torch.zeros_like(ends)
    return torch.stack([ends, none, none, ends], 1)


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


@compiled(_is_right)
def attention_kernel(cpu: Cpu) -> AttentionKernel:
    """The attention of this CPU; None where this CPU or LLVM cannot have it."""
    functions = load(AttentionWriter(cpu), cpu)
    return AttentionKernel(functions["store"], functions["attend"])


class AttentionWriter(Writer):
    """``store`` writes the rows' keys and values; ``attend`` takes this thread's part of the queries. Those of a key
    head are counted row by row, and of a row head by head.
    """

    def __init__(self, cpu: Cpu) -> None:
        super().__init__(cpu)
        self.sums = _QUERIES * (_CHUNK if cpu.wide else 1)  # that stay in registers
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
        score, add = ({n: make(n) for n in range(1, _QUERIES + 1)} for make in (self._score, self._add_values))
        b, given = self.entry("attend", _FIELDS, _POINTERS)
        none, many, d = self.long(0), self.long(_QUERIES), given["d"]
        length = self._whole(b, b.add(given["start"], given["rows"]))
        scores, totals = (self.room(b, self.single, b.mul(n, many), 4 * LANES) for n in (length, self.long(1)))
        queries = self.room(b, self.long, self.long(_QUERIES * len(_QUERY)), 8)
        scale = b.fdiv(self.ir.Constant(self.single, 1.0), b.call(self.root, [b.sitofp(d, self.single)]))
        (size, _), of_head = self._sizes(b, given), b.mul(given["rows"], self._group(b, given))
        mine = self.mine(b, b.mul(given["rows"], given["n_heads"]))
        with self.loop(b, none, given["n_kv_heads"], 1, []) as (head, _):
            keys, values = (self.at(b, given[name], b.mul(head, size), self.single) for name in ("keys", "values"))
            first, end = (self._within(b, b.sub(one, b.mul(head, of_head)), of_head) for one in mine)
            with self.parts(b, self.cut(b, b.sub(end, first), _QUERIES)) as (begin, n, _):
                trunk, reach = self._list(b, given, head, b.add(first, begin), n, queries)
                for count in self.cases(b, n, _QUERIES):
                    b.call(score[count], [queries, keys, scores, length, d, reach])
                with self.loop(b, none, n, 1, []) as (i, _):
                    p = self.at(b, scores, b.mul(length, i), self.single)
                    total = self._weigh(b, given, self._of(b, queries, i), p, self.everywhere(b, scale))
                    b.store(total, self.at(b, totals, i, self.single))
                for count in self.cases(b, n, _QUERIES):
                    b.call(add[count], [queries, values, scores, length, d, given["capacity"], trunk])
                with self.loop(b, none, n, 1, []) as (i, _):
                    p = self.at(b, scores, b.mul(length, i), self.single)
                    total = self.everywhere(b, self.number(b, totals, i))
                    self._finish(b, given, self._of(b, queries, i), values, p, trunk, total)
        b.ret_void()

    def _list(self, b: Any, given: dict[str, Any], head: Any, first: Any, n: Any, queries: Any) -> tuple[Any, Any]:
        """Lists ``n`` queries of a key head in ``queries``. Returns how many keys from the first on all of them see,
        and the end of the keys that any of them sees.
        """
        bounds = [given["capacity"], self.long(0)]
        with self.loop(b, self.long(0), n, 1, bounds) as (i, found):
            group, (_, width) = self._group(b, given), self._sizes(b, given)
            row = b.sdiv(b.add(first, i), group)
            of_row = b.add(b.mul(head, group), b.srem(b.add(first, i), group))
            places = (b.add(b.mul(row, heads), of_row) for heads in (width, given["n_heads"]))
            addresses = [
                b.ptrtoint(self.at(b, given[name], b.mul(place, given["d"]), self.single), self.long)
                for name, place in zip(("heads", "out"), places)
            ]
            at = self.at(b, given["seen"], b.mul(row, self.long(SEEN)), self.long)
            seen = [b.load(self.at(b, at, self.long(j), self.long), typ=self.long) for j in range(SEEN)]
            for j, value in enumerate((*addresses, *seen)):
                b.store(value, self.at(b, queries, b.add(b.mul(i, self.long(len(_QUERY))), self.long(j)), self.long))
            found[:] = self._smaller(b, found[0], seen[0]), self._larger(b, found[1], seen[-1])
        return bounds[0], bounds[1]

    def _of(self, b: Any, queries: Any, i: Any) -> dict[str, Any]:
        """Query ``i`` of a list."""
        at = self.at(b, queries, b.mul(i, self.long(len(_QUERY))), self.long)
        found = {name: b.load(self.at(b, at, self.long(j), self.long), typ=self.long) for j, name in enumerate(_QUERY)}
        return found | {name: b.inttoptr(found[name], self.pointer) for name in _QUERY[:2]}

    def _group(self, b: Any, given: dict[str, Any]) -> Any:
        """Query heads of a key head."""
        return b.sdiv(given["n_heads"], given["n_kv_heads"])

    def _smaller(self, b: Any, one: Any, two: Any) -> Any:
        return b.select(b.icmp_signed("<", one, two), one, two)

    def _larger(self, b: Any, one: Any, two: Any) -> Any:
        return b.select(b.icmp_signed(">", one, two), one, two)

    def _within(self, b: Any, number: Any, end: Any) -> Any:
        """``number``, or the bound of 0 to ``end`` that it passes."""
        return self._smaller(b, self._larger(b, number, self.long(0)), end)

    def _sizes(self, b: Any, given: dict[str, Any]) -> tuple[Any, Any]:
        """The numbers in a head's keys, or values; the heads of a row."""
        width = b.add(given["n_heads"], b.mul(given["n_kv_heads"], self.long(2)))
        return b.mul(given["capacity"], given["d"]), width

    def _in_chunks(self, b: Any, end: Any, n: int) -> Any:
        """Loops over the whole chunks before ``end``, then over what is left: (first, end, how many at a time), with
        the sums of ``n`` queries.
        """
        at_once = max(chunk for chunk in (1, 2, _CHUNK) if chunk * n <= max(n, self.sums))
        whole = b.sub(end, b.srem(end, self.long(at_once)))
        return ((self.long(0), whole, at_once), (whole, end, 1))[: 1 + (at_once > 1)]

    def _score(self, n: int) -> Any:
        """The products of ``n`` queries by the keys before ``reach``, and by the rest of its block: (queries, keys,
        scores, scores of a query, d, reach).
        """
        function = self.declare(f"score{n}", self.none, [self.pointer] * 3 + [self.long] * 3)
        function.linkage = "internal"
        queries, keys, scores, length, d, reach = function.args
        b = self.begin(function)
        of = [self._of(b, queries, self.long(i))["query"] for i in range(n)]
        for first, end, at_once in self._in_chunks(b, b.sdiv(self._whole(b, reach), self.long(LANES)), n):
            with self.loop(b, first, end, at_once, []) as (block, _):
                starts, sums = self._starts(b, keys, d, block, at_once), [self.zero] * (n * at_once)
                with self.loop(b, self.long(0), d, 1, sums) as (i, values):
                    self._add(b, starts, i, [self.number(b, query, i) for query in of], values)
                for i, value in enumerate(sums):
                    place = b.mul(b.add(block, self.long(i % at_once)), self.long(LANES))
                    self.put(b, value, scores, b.add(b.mul(length, self.long(i // at_once)), place))
        b.ret_void()
        return function

    def _weigh(self, b: Any, given: dict[str, Any], of: dict[str, Any], scores: Any, scale: Any) -> Any:
        """Replaces the scores of what a query sees by their exponentials, in the order of its text. Returns the sum."""
        with self.loop(b, of["path"], of["last"], 1, []) as (step, _):  # in place
            place = b.load(self.at(b, given["places"], step, self.long), typ=self.long)
            to = self.at(b, scores, self._step(b, of, step), self.single)
            b.store(self.number(b, scores, place), to)
        return self._exponentials(b, scores, self._step(b, of, of["last"]), scale)

    def _step(self, b: Any, of: dict[str, Any], step: Any) -> Any:
        """The place in its text of a ``step`` of a query's path."""
        return b.add(of["trunk"], b.sub(step, of["path"]))

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

    def _add_values(self, n: int) -> Any:
        """To the outputs of ``n`` queries, the values of the keys before ``trunk`` by their weights: (queries, values,
        weights, weights of a query, d, capacity, trunk).
        """
        function = self.declare(f"add{n}", self.none, [self.pointer] * 3 + [self.long] * 4)
        function.linkage = "internal"
        queries, values, p, length, d, capacity, trunk = function.args
        b = self.begin(function)
        of = [self._of(b, queries, self.long(i))["out"] for i in range(n)]
        weights = [self.at(b, p, b.mul(length, self.long(i)), self.single) for i in range(n)]
        for first, end, at_once in self._in_chunks(b, b.sdiv(d, self.long(LANES)), n):
            with self.loop(b, first, end, at_once, []) as (block, _):
                starts, sums = self._starts(b, values, capacity, block, at_once), [self.zero] * (n * at_once)
                with self.loop(b, self.long(0), trunk, 1, sums) as (place, found):
                    self._add(b, starts, place, [self.number(b, one, place) for one in weights], found)
                for i, value in enumerate(sums):
                    place = b.mul(b.add(block, self.long(i % at_once)), self.long(LANES))
                    self.put(b, value, of[i // at_once], place)
        b.ret_void()
        return function

    def _finish(
        self, b: Any, given: dict[str, Any], of: dict[str, Any], values: Any, p: Any, trunk: Any, total: Any
    ) -> None:
        """To a query's output the values from ``trunk`` on and of its path; the whole over ``total``."""
        for first, end, at_once in self._in_chunks(b, b.sdiv(given["d"], self.long(LANES)), 1):
            with self.loop(b, first, end, at_once, []) as (block, _):
                starts = self._starts(b, values, given["capacity"], block, at_once)
                outputs = [b.mul(b.add(block, self.long(i)), self.long(LANES)) for i in range(at_once)]
                sums = [self.vector_at(b, of["out"], output) for output in outputs]
                with self.loop(b, trunk, of["trunk"], 1, sums) as (place, found):
                    self._add(b, starts, place, [self.number(b, p, place)], found)
                with self.loop(b, of["path"], of["last"], 1, sums) as (step, found):
                    place = b.load(self.at(b, given["places"], step, self.long), typ=self.long)
                    self._add(b, starts, place, [self.number(b, p, self._step(b, of, step))], found)
                for output, value in zip(outputs, sums):
                    self.put(b, b.fdiv(value, total), of["out"], output)

    def _starts(self, b: Any, held: Any, size: Any, block: Any, at_once: int) -> list[Any]:
        """Where ``at_once`` blocks of keys or values begin, of ``size`` vectors each."""
        vectors = (b.mul(size, b.add(block, self.long(i))) for i in range(at_once))
        return [self.at(b, held, b.mul(vector, self.long(LANES)), self.single) for vector in vectors]

    def _add(self, b: Any, starts: list[Any], place: Any, numbers: list[Any], sums: list[Any]) -> None:
        """To the sums of each number, the vectors at ``place`` by it."""
        found = [self.vector_at(b, start, b.mul(place, self.long(LANES))) for start in starts]
        for row, number in enumerate(numbers):
            weight = self.everywhere(b, number)
            for i, value in enumerate(found, row * len(starts)):
                sums[i] = b.call(self.fma, [value, weight, sums[i]])
