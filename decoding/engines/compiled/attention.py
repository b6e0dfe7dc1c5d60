"""Attention of few or many rows over a KV cache in float32: softmax(Q K^T / sqrt(d)) V.

A row reads the keys in the order of its own text, whatever their places in the cache, and the sums of a score and of
the values add up in that order. So a row's bits do not depend on the other rows of its pass, and in a tree they are
those of a plain pass. Several queries, of one row or more, meet each key and value while it is in registers.

Keys are [kv heads, capacity / LANES, d, LANES], so that a step scores LANES keys; values [kv heads, d / LANES,
capacity, LANES].
"""

from __future__ import annotations

from collections.abc import Iterator
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
        self._store()
        self._attend()

    def _store(self) -> None:
        self.given, _ = self.entry("store", _FIELDS, _POINTERS)
        given, d = self.given, self.given["d"]
        size, width, _ = self._sizes()
        with self.each(given["rows"]) as row:
            place = given["start"] + row
            block, lane = place // LANES, place % LANES
            with self.each(given["n_kv_heads"]) as head:
                of = row * width + (given["n_heads"] + head)
                key = given["heads"] + of * d
                value = key + given["n_kv_heads"] * d
                lanes = block * d * LANES + lane
                keys = given["keys"] + (head * size + lanes)
                with self.each(d) as i:
                    keys[i * LANES] = key[i]
                with self.each(d, LANES) as i:
                    to = i * given["capacity"] + place * LANES
                    given["values"].put(value.vector(i), head * size + to)
        self.b.ret_void()

    def _attend(self) -> None:
        score, add = ({n: make(n) for n in range(1, _QUERIES + 1)} for make in (self._score, self._add_values))
        self.given, _ = self.entry("attend", _FIELDS, _POINTERS)
        given, d = self.given, self.given["d"]
        length = self._whole(given["start"] + given["rows"])
        scores, totals = (self.room(self.single, n, 4 * LANES) for n in (length * _QUERIES, _QUERIES))
        queries = self.room(self.long, _QUERIES * len(_QUERY), 8)
        scale = self.constant(1.0, self.single) / self.root(d.to(self.single, "sitofp"))
        size, _, group = self._sizes()
        of_head = given["rows"] * group
        mine = self.mine(given["rows"] * given["n_heads"])
        with self.each(given["n_kv_heads"]) as head:
            keys, values = (given[name] + head * size for name in ("keys", "values"))
            first, end = (self.smaller(self.larger(one - head * of_head, 0), of_head) for one in mine)
            with self.parts(self.cut(end - first, _QUERIES)) as (begin, n, _):
                trunk, reach = self._list(head, first + begin, n, queries)
                for count in self.cases(n, _QUERIES):
                    score[count](queries, keys, scores, length, d, reach)
                with self.each(n) as i:
                    p = scores + length * i
                    totals[i] = self._weigh(self._of(queries, i), p, self.everywhere(scale))
                for count in self.cases(n, _QUERIES):
                    add[count](queries, values, scores, length, d, given["capacity"], trunk)
                with self.each(n) as i:
                    p = scores + length * i
                    total = self.everywhere(totals[i])
                    self._finish(self._of(queries, i), values, p, trunk, total)
        self.b.ret_void()

    def _list(self, head: Any, first: Any, n: Any, queries: Any) -> tuple[Any, Any]:
        """Lists ``n`` queries of a key head in ``queries``. Returns how many keys from the first on all of them see,
        and the end of the keys that any of them sees.
        """
        given = self.given
        bounds = [given["capacity"], 0]
        with self.loop(0, n, 1, bounds) as (i, found):
            _, width, group = self._sizes()
            row = (first + i) // group
            of_row = head * group + (first + i) % group
            query = given["heads"] + (row * width + of_row) * given["d"]
            out = given["out"] + (row * given["n_heads"] + of_row) * given["d"]
            of_seen = given["seen"].of(self.long) + row * SEEN
            seen = [of_seen[j] for j in range(SEEN)]
            for j, value in enumerate((query, out, *seen)):
                queries[i * len(_QUERY) + j] = value
            found[:] = self.smaller(found[0], seen[0]), self.larger(found[1], seen[-1])
        return bounds[0], bounds[1]

    def _of(self, queries: Any, i: Any) -> dict[str, Any]:
        """Query ``i`` of a list."""
        at = queries.of(self.long) + i * len(_QUERY)
        found = {name: at[j] for j, name in enumerate(_QUERY)}
        return found | {name: found[name].pointer for name in _QUERY[:2]}

    def _sizes(self) -> tuple[Any, Any, Any]:
        """The numbers in a head's keys, or values; the heads of a row; the query heads of a key head."""
        capacity, n_heads, n_kv_heads, d = (self.given[name] for name in _FIELDS[-4:])
        return capacity * d, n_heads + n_kv_heads * 2, n_heads // n_kv_heads

    def _in_chunks(self, end: Any, n: int) -> Iterator[tuple[Any, int]]:
        """Code for each of the whole chunks before ``end``, then for each thing that is left: where it is, and how many
        things it has, with the sums of ``n`` queries.
        """
        at_once = max(chunk for chunk in (1, 2, _CHUNK) if chunk * n <= max(n, self.sums))
        whole = end - end % at_once
        with self.each(whole, at_once) as first:
            yield first, at_once
        if at_once > 1:
            with self.each(end, 1, whole) as first:
                yield first, 1

    def _score(self, n: int) -> Any:
        """The products of ``n`` queries by the keys before ``reach``, and by the rest of its block: (queries, keys,
        scores, scores of a query, d, reach).
        """
        score, (queries, keys, scores, length, d, reach) = self.begin(f"score{n}", 3, 3)
        of = [self._of(queries, i)["query"] for i in range(n)]
        for block, at_once in self._in_chunks(self._whole(reach) // LANES, n):
            starts, sums = self._starts(keys, d, block, at_once), [self.zero] * (n * at_once)
            with self.loop(0, d, 1, sums) as (i, values):
                self._add(starts, i, [query[i] for query in of], values)
            for i, value in enumerate(sums):
                scores.put(value, length * (i // at_once) + (block + i % at_once) * LANES)
        self.b.ret_void()
        return score

    def _weigh(self, of: dict[str, Any], scores: Any, scale: Any) -> Any:
        """Replaces the scores s of what a query sees by exp(scale (s - the largest)), in the order of its text, and the
        rest of the last block by zeros. Returns the sum.
        """
        with self.each(first=of["path"], end=of["last"]) as step:  # in place
            scores[self._step(of, step)] = scores[self.given["places"].of(self.long)[step]]
        length = self._step(of, of["last"])
        whole, largest, sums = self._whole(length), [self.constant(-3e38)], [self.zero]
        with self.loop(0, whole, LANES, largest) as (at, values):
            found = self.select(self._before(at, length), scores.vector(at), -3e38)
            values[0] = self.larger(found, values[0])
        highest = self.everywhere(self.largest(largest[0]))
        with self.loop(0, whole, LANES, sums) as (at, values):
            found = self.exp((scores.vector(at) - highest) * scale)
            found = self.select(self._before(at, length), found, self.zero)
            scores.put(found, at)
            values[0] = values[0] + found
        return self.sum_of(sums[0])

    def _step(self, of: dict[str, Any], step: Any) -> Any:
        """The place in its text of a ``step`` of a query's path."""
        return of["trunk"] + (step - of["path"])

    def _whole(self, n: Any) -> Any:
        """``n`` up to whole blocks."""
        return (n + (LANES - 1)) // LANES * LANES

    def _before(self, first: Any, end: Any) -> Any:
        """Which of LANES places from ``first`` on are before ``end``."""
        lanes = self.constant(list(range(LANES)), self.ir.VectorType(self.long, LANES))
        return lanes + self.everywhere(first) < self.everywhere(end)

    def _add_values(self, n: int) -> Any:
        """To the outputs of ``n`` queries, the values of the keys before ``trunk`` by their weights: (queries, values,
        weights, weights of a query, d, capacity, trunk).
        """
        add, (queries, values, p, length, d, capacity, trunk) = self.begin(f"add{n}", 3, 4)
        of = [self._of(queries, i)["out"] for i in range(n)]
        weights = [p + length * i for i in range(n)]
        for block, at_once in self._in_chunks(d // LANES, n):
            starts, sums = self._starts(values, capacity, block, at_once), [self.zero] * (n * at_once)
            with self.loop(0, trunk, 1, sums) as (place, found):
                self._add(starts, place, [one[place] for one in weights], found)
            for i, value in enumerate(sums):
                of[i // at_once].put(value, (block + i % at_once) * LANES)
        self.b.ret_void()
        return add

    def _finish(self, of: dict[str, Any], values: Any, p: Any, trunk: Any, total: Any) -> None:
        """To a query's output the values from ``trunk`` on and of its path; the whole over ``total``."""
        given = self.given
        for block, at_once in self._in_chunks(given["d"] // LANES, 1):
            starts = self._starts(values, given["capacity"], block, at_once)
            outputs = [(block + i) * LANES for i in range(at_once)]
            sums = [of["out"].vector(output) for output in outputs]
            with self.loop(trunk, of["trunk"], 1, sums) as (place, found):
                self._add(starts, place, [p[place]], found)
            with self.loop(of["path"], of["last"], 1, sums) as (step, found):
                place = given["places"].of(self.long)[step]
                self._add(starts, place, [p[self._step(of, step)]], found)
            for output, value in zip(outputs, sums):
                of["out"].put(value / total, output)

    def _starts(self, held: Any, size: Any, block: Any, at_once: int) -> list[Any]:
        """Where ``at_once`` blocks of keys or values begin, of ``size`` vectors each."""
        return [held + size * (block + i) * LANES for i in range(at_once)]

    def _add(self, starts: list[Any], place: Any, numbers: list[Any], sums: list[Any]) -> None:
        """To the sums of each number, the vectors at ``place`` by it."""
        found = [start.vector(place * LANES) for start in starts]
        for row, number in enumerate(numbers):
            weight = self.everywhere(number)
            for i, value in enumerate(found, row * len(starts)):
                sums[i] = self.fma(value, weight, sums[i])
