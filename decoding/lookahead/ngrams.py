"""How often the target's own text contains a sequence of one to three tokens, in two megabytes.

A draft's probability does not say whether the draft has seen the like: of guesses with the same probability, those that
make a sequence which is rare in its training text hold less often than those that make a frequent one.

Counts are kept as *levels*, floor(log2(count)) up to 15, in a table of :data:`CELLS` cells that a hash of the tokens
picks. There are no keys: a sequence whose cell belongs to others as well gets their highest level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..errors import UserError
from ..files import write_whole

FILE = "ngrams.safetensors"
"""Beside the weights of a draft: counts of text that its target wrote, for all drafts of that target."""
BITS = 22
CELLS = 1 << BITS
ORDERS = (1, 2, 3)
N_LEVELS = 5
"""Levels of a guess; see :meth:`Ngrams.levels`."""
HIGHEST = 15
_TOKEN_BITS = 20
_MULTIPLIER, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def _key(*tokens: int) -> int:
    """A number for up to three tokens, each from 0 to 2^20 - 2; a token of -1 is left out."""
    key = 0
    for token in tokens:
        key = key << _TOKEN_BITS | token + 1
    return key


def _cell(key: int) -> int:
    return ((key ^ key >> 29) * _MULTIPLIER & _MASK) >> (64 - BITS)


class Ngrams:
    """Levels of sequences of tokens."""

    def __init__(self, packed: np.ndarray) -> None:
        """``packed`` [CELLS / 2] uint8: two cells per byte, the lower one in the low bits."""
        self.packed = packed.reshape(CELLS // 2)
        self._levels = np.column_stack([self.packed & 15, self.packed >> 4]).tobytes()

    @classmethod
    def count(cls, texts: Iterable[Sequence[int]]) -> Ngrams:
        """The n-grams of these texts, of token ids."""
        counts = Counter[tuple[int, ...]]()
        for text in texts:
            for order in ORDERS:
                counts.update(zip(*(text[start:] for start in range(order))))
        levels = np.zeros(CELLS, dtype=np.uint8)
        for tokens, count in counts.items():
            cell = _cell(_key(*tokens))
            levels[cell] = max(levels[cell], min(count.bit_length() - 1, HIGHEST))
        return cls(levels[::2] | levels[1::2] << 4)

    def levels(self, before: int, last: int, guess: int) -> list[int]:
        """Of a guess after the tokens ``before``, ``last`` (-1: none): the levels of the guess, of the last token, of
        both, of the two tokens before the guess, and of all three.
        """
        levels, context = self._levels, _key(before, last)
        second, third = last + 1, guess + 1
        keys = third, second, second << _TOKEN_BITS | third, context, context << _TOKEN_BITS | third
        return [levels[_cell(key)] for key in keys]

    def levels_along(self, before: Sequence[int], given: Sequence[int], guesses: Sequence[int | None]) -> np.ndarray:
        """Levels [n, N_LEVELS] (uint8) of each guess i made after ``before + given[:i]``; 0 for a guess of None."""
        text = [-1, -1, *before[-2:], *given]
        start = len(text) - len(given)
        rows = [
            [0] * N_LEVELS if guess is None else self.levels(text[at - 2], text[at - 1], guess)
            for at, guess in enumerate(guesses, start)
        ]
        return np.array(rows, dtype=np.uint8).reshape(-1, N_LEVELS)


def write_ngrams(folder: Path, ngrams: Ngrams) -> None:
    """Writes them into ``folder``, atomically. Raises OSError."""
    write_whole(folder / FILE, save({"levels": ngrams.packed}))


def read_ngrams(folder: Path) -> Ngrams | None:
    """Those of the draft in ``folder``, or else of one whose folder is beside it; None if there are none. Raises
    UserError if the file is damaged.
    """
    beside = sorted(folder.parent.glob(f"*/{FILE}"))
    file = next((file for file in (folder / FILE, *beside) if file.is_file()), None)
    if file is None:
        return None
    try:
        packed = load(file.read_bytes()).get("levels")
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{file.parent.name}/{FILE} cannot be read: fetch the draft again.") from error
    if packed is None or packed.shape != (CELLS // 2,) or packed.dtype != np.uint8:
        raise UserError(f"{file.parent.name}/{FILE} does not hold the counts of n-grams: fetch the draft again.")
    return Ngrams(packed)
