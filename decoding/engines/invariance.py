"""Tests whether a row's bits depend on the number of rows in its pass, on a model's own shapes when it is loaded.

A check of n drafts must see the same logits as plain decoding sees token by token; otherwise near ties resolve
differently, and lanes that should write the same text diverge. The kernel that a library chooses for a shape and number
of rows changes with its version, so this is tested, not assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from .attention import MAX_ROWS
from .base import CachedModel
from .inputs import Branches
from .linears import TESTED_ROWS, Linear

LONGEST = MAX_ROWS  # of one pass
ROWS = (1, 2, 3, 5, 6, 7, 17, 65)  # plain decoding, checks as they are usual, long ones
MOST_PADDING = 7  # rows
LEAST_ROWS = 8
_PROMPT = 8
Result = tuple[torch.Tensor, ...]


class Company(NamedTuple):
    """How a product takes its rows: as in :class:`Linear`."""

    padded: Mapping[int, int]
    most: int | None = None


def pad_rows(linears: Iterable[Linear], chosen: dict[tuple, Company] | None = None) -> None:
    """Tells each of ``linears`` how to take its rows so that they keep their bits, tested once per shape and number of
    threads; ``chosen`` keeps what was found for the next call.

    Where that does not help, :func:`keeps_bits` shows it on the model.
    """
    chosen = {} if chosen is None else chosen
    for linear in linears:
        if linear.rows_apart:
            continue
        shape = (type(linear), linear.n_out, linear.n_in, linear.dtype, torch.get_num_threads())
        if shape not in chosen:
            chosen[shape] = _company_of(linear)
        linear.padded, linear.most = chosen[shape]


def _company_of(linear: Linear) -> Company:
    """How rows are to be multiplied where the kernel for a number of rows sums in another order than others.

    MKL's for AVX512 do so for 1 row and from 16 on, so that 1 is padded to 2, and at most 15 are multiplied together.
    oneDNN's with AMX do from 33 on: where the longest pass has other bits than one of TESTED_ROWS, a pass has at most
    as many rows.
    """
    linear.padded, linear.most = {}, None
    *results, longest = _results(linear)
    for most in range(TESTED_ROWS, MOST_PADDING, -1):
        padded = _padding_of(results[:most])
        if max((m - n for n, m in padded.items()), default=0) <= MOST_PADDING:
            break
    any_number = not padded and most == TESTED_ROWS and _are_alike(results[-1], longest)
    return Company(padded, None if any_number else most)


def _padding_of(results: list[Result]) -> dict[int, int]:
    """Of ``results``, of 1, 2, 3, ... rows: for each number whose bits differ from the last result's, the next number
    whose bits do not.
    """
    alike = [n for n, result in enumerate(results, 1) if _are_alike(result, results[-1])]
    found = {n: next((m for m in alike if m >= n), n) for n in range(1, len(results))}  # NaN equals nothing
    return {n: m for n, m in found.items() if m > n}


def _are_alike(result: Result, longer: Result) -> bool:
    """Whether a ``longer`` result begins with the bits of the other."""
    return all(torch.equal(one, more[: len(one)]) for one, more in zip(result, longer))


def _results(linear: Linear) -> list[Result]:
    """The first rows multiplied one by one, two by two, ... up to TESTED_ROWS, and those of the longest pass: at least
    LEAST_ROWS of them, since in a small product one row alone may happen to keep its bits.

    A bfloat16 result hides nearly all differences of its float32 sum. So the rounded result is also subtracted inside
    the product (``plus``, of a dense one), which leaves the bits that rounding hid.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(LONGEST, linear.n_in, generator=generator).to(linear.dtype)
    rounded = linear(x)

    def taken(n: int) -> Result:
        parts = [slice(first, first + n) for first in range(0, max(n, LEAST_ROWS), n)]
        return torch.cat([linear(x[i]) for i in parts]), torch.cat([linear.plus(x[i], -rounded[i]) for i in parts])

    return [taken(n) for n in (*range(1, TESTED_ROWS + 1), LONGEST)]


def keeps_bits(model: CachedModel) -> bool:
    """Whether the whole ``model`` gives a row the same logits for every number of tokens in a pass, and in a tree.
    Empties its cache.
    """
    ids = [(7 * place + 3) % model.vocab_size for place in range(min(_PROMPT + max(ROWS), model.max_length))]
    prompt, rest = ids[:_PROMPT], ids[_PROMPT:]
    model.prefill(prompt)
    together = model.extend(rest)
    alike = True
    for n in (rows for rows in ROWS if rows <= len(rest)):
        model.rewind(_PROMPT)
        alike = alike and _are_first(model.extend(rest[:n]), together[:n])
    if model.can_branch:  # the first three, apart from each other, in a tree with wrong tokens between them
        model.rewind(_PROMPT)
        nodes, parents = [rest[0], ids[0], rest[1], ids[1], rest[2]], [-1, -1, 0, 0, 2]
        tree = model.extend(nodes, Branches.below(_PROMPT, parents))
        alike = alike and _are_first(tree[[0, 2, 4]], together[:3])
    model.rewind(0)
    return alike


def _are_first(logits: torch.Tensor, together: torch.Tensor) -> bool:
    """Whether ``together`` begins with ``logits``: of a reduced head, a longer text has more (text_tokens.py)."""
    return torch.equal(logits, together[:, : logits.shape[1]])


PARTS = (
    "On this machine the numbers computed for a token depend slightly on how many tokens share a pass. Where the "
    "target's two best tokens are nearly tied, lanes may write different texts."
)
