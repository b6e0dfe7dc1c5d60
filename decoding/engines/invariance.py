"""Do a row's bits depend on how many rows are read with it? Tried on the shapes at hand when a model is loaded.

A check of n drafts must see the very logits that plain decoding sees one token at a time: otherwise near ties fall
differently, and lanes that should write the same text part. Which kernel a library takes for which shape and number of
rows is its own affair and changes with its version, so nothing here is believed: it is tried.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .base import CachedModel
from .linears import PackedLinear

ROWS = (1, 2, 6, 17)  # plain decoding, the shortest check, a usual one, a long one
MOST_ROWS = 24
PADDINGS = (1, 2, 4, 8)  # tried in this order; two rows cost hardly more than one
_PROMPT = 8


def pad_lone_rows(linears: Iterable[PackedLinear]) -> None:
    """Give each of ``linears`` the least padding under which its rows keep their bits, tried once per shape.

    Where none of PADDINGS helps it stays unpadded: :func:`keeps_bits` then tells what that does to the model.
    """
    chosen: dict[tuple, int] = {}
    for linear in linears:
        shape = (linear.n_out, linear.n_in, linear.weight.dtype, linear.bias is None)
        if shape not in chosen:
            chosen[shape] = _least_rows(linear)
        linear.least_rows = chosen[shape]


def _least_rows(linear: PackedLinear) -> int:
    for rows in PADDINGS:
        linear.least_rows = rows
        if _rows_agree(linear):
            return rows
    return 1


def _rows_agree(linear: PackedLinear) -> bool:
    """Are the bits of a row the same in every company?

    A result in bfloat16 hides nearly all differences of its float32 sum. So the rounded result is subtracted inside
    the product (``plus``): what is left are the bits that rounding hid.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(MOST_ROWS, linear.n_in, generator=generator).to(linear.weight.dtype)
    rounded = -linear(x)
    rest = linear.plus(x, rounded)
    return all(torch.equal(linear.plus(x[:n], rounded[:n]), rest[:n]) for n in ROWS)


def keeps_bits(model: CachedModel) -> bool:
    """Does the whole ``model`` give a row the same logits however many tokens share the pass? Empties its cache."""
    ids = [(7 * place + 3) % model.vocab_size for place in range(_PROMPT + max(ROWS))]
    prompt, rest = ids[:_PROMPT], ids[_PROMPT:]
    model.prefill(prompt)
    together = model.extend(rest)
    alike = True
    for n in ROWS:
        model.rewind(_PROMPT)
        alike = alike and torch.equal(model.extend(rest[:n]), together[:n])
    model.rewind(0)
    return alike


PARTS = (
    "On this machine a token's bits depend on how many tokens share a pass, so where the target's two best tokens "
    "nearly tie, lanes may part."
)
