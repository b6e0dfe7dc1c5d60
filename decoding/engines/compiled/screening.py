"""Of a head whose logits are known roughly: the exact ones of its best tokens.

Tokens are dealt to GROUPS groups in turn, and of each group the token with the highest rough logit gets its exact one,
the product of the head's input by the token's own row. One of a group is found in one reading of the logits, which the
best ones of all would not be.
"""

from __future__ import annotations

from typing import Any

import torch

from . import Function, compiled, load
from .writer import LANES, LINE, Cpu, Writer

GROUPS = 128
_TOGETHER = 4  # products, so that none waits for its last step
_POINTERS = ("hidden", "logits", "levels", "scales")
FIELDS = (*_POINTERS, "rows", "n", "size")


class Refinement:
    """Of the ``logits`` [rows, n] float32, in place: ``hidden`` [rows, size] float32 by int8 rows [n, size], each times
    its scale [n] float32. n must be a multiple of GROUPS, and size of LANES; a row's bits do not depend on the others.
    """

    def __init__(self, refine: Function) -> None:
        self.function = refine

    def __call__(self, hidden: torch.Tensor, logits: torch.Tensor, levels: torch.Tensor, scales: torch.Tensor) -> None:
        hidden, (rows, n) = hidden.contiguous(), logits.shape
        pointers = (one.data_ptr() for one in (hidden, logits, levels, scales))
        self.function(*pointers, rows, n, levels.shape[1], parts=GROUPS // LANES, work=rows * n)


def _is_right(made: Refinement) -> bool:
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


@compiled(_is_right)
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
        b, given = self.entry("refine", FIELDS, _POINTERS)
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
