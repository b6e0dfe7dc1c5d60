"""How far the text repeats itself: a streaming lookup of what followed at the last occurrence.

Greedy text of small models runs in loops, and there a drafted token that leaves the loop is nearly always wrong. The
lookup costs a few dictionary operations per token and needs no model. It follows one earlier position in the text while
that predicts the next token, and looks for another when it fails: prompt lookup decoding (Saxena, 2023), used as
evidence instead of as a draft.
"""

from __future__ import annotations

from collections.abc import Sequence

ORDER = 2  # tokens that must match before an earlier position is followed
LONGEST = 63  # longest counted run


class Repetition:
    """Follows a growing text; ``rewind`` takes back rejected drafts.

    ``evidence(token)`` encodes, for a guess of the next token, how long the text has repeated (``run``) and whether the
    guess continues it: 0 without repetition; ``run`` if it agrees; ``LONGEST + run`` if it disagrees. There are
    N_EVIDENCE codes.
    """

    def __init__(self) -> None:
        self._text: list[int] = []
        self._after: dict[tuple[int, int], int] = {}  # last position after each pair of tokens
        self._undo: list[tuple[tuple[int, int] | None, int | None, int, int]] = []
        self._at = -1  # the position that predicts the next token; -1: none
        self._run = 0

    @property
    def end(self) -> Sequence[int]:
        """The last two tokens of the text, or fewer if it is shorter."""
        return self._text[-2:]

    def follow(self, text: Sequence[int], known: int = 0) -> None:
        """Takes back what is not in ``text``, and reads its rest; its first ``known`` tokens surely have been read."""
        most = min(len(self._text), len(text))
        while known < most and self._text[known] == text[known]:
            known += 1
        self.rewind(known)
        for index in range(known, len(text)):
            self.push(text[index])

    def push(self, token: int) -> None:
        """Appends ``token`` to the text."""
        text = self._text
        at, run = self._at, self._run
        key = (text[-1], token) if text else None
        text.append(token)
        found = None
        if key is not None:
            found = self._after.get(key)
            self._after[key] = len(text)
        self._undo.append((key, found, at, run))
        if at >= 0 and text[at] == token:
            self._at = at + 1
            self._run = run + 1 if run < LONGEST else LONGEST
        elif found is not None:
            self._at, self._run = found, ORDER
        else:
            self._at, self._run = -1, 0

    def rewind(self, length: int) -> None:
        """Discards all tokens after the first ``length``."""
        while len(self._text) > length:
            key, found, self._at, self._run = self._undo.pop()
            self._text.pop()
            if key is None:
                continue
            if found is None:
                del self._after[key]
            else:
                self._after[key] = found

    def evidence(self, token: int) -> int:
        """The evidence for ``token`` as the next one; see the class."""
        if self._at < 0:
            return 0
        return self._run if self._text[self._at] == token else LONGEST + self._run


N_EVIDENCE = 2 * LONGEST + 1


def evidence_along(before: Sequence[int], given: Sequence[int], guesses: Sequence[int | None]) -> list[int]:
    """Evidence of each guess i made after ``before + given[:i]``; 0 for a guess of None."""
    repetition = Repetition()
    repetition.follow(before)
    found = []
    for guess, token in zip(guesses, given, strict=True):
        found.append(0 if guess is None else repetition.evidence(guess))
        repetition.push(token)
    return found
