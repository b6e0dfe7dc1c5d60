"""Where a text ends: end of sequence, stop strings, the token limit, the context limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..records.trace import Finish

Decode = Callable[[list[int]], str]


@dataclass(slots=True)
class Limits:
    """When to stop; the same for all lanes, and a function of the text alone, so that their texts agree.

    ``finish_at_limit`` says what set ``max_new_tokens``: the visitor ("length") or the context ("context").
    """

    max_new_tokens: int
    ends: frozenset[int] = frozenset()  # end-of-sequence ids; empty where they are ignored
    stop: StopStrings | None = None
    finish_at_limit: Finish = "length"

    def cut(self, output: list[int], new: list[int]) -> tuple[int, Finish | None]:
        """How many of the tokens ``new`` after ``output`` belong to the text, and why it ends there, if so."""
        if self.stop is not None or not self.ends.isdisjoint(new):
            for kept, token in enumerate(new, start=1):
                if token in self.ends:
                    return kept, "eos"
                if self.stop is not None and self.stop.completes(output, new[:kept]):
                    return kept, "stop"
        if len(output) + len(new) >= self.max_new_tokens:
            return self.max_new_tokens - len(output), self.finish_at_limit
        return len(new), None


class StopStrings:
    """Finds the token that completes a stop string; a string may span tokens and begin inside one."""

    def __init__(self, strings: list[str], decode: Decode) -> None:
        self._strings = strings
        self._decode = decode
        # Enough tokens to hold the longest string (a token has a byte or more) and the seams before it.
        self._window = max(len(string.encode()) for string in strings) + 8

    def completes(self, output: list[int], new: list[int]) -> bool:
        """Does the last token of ``output`` + ``new`` complete a stop string?

        Asked for one token after the other, so that an earlier one is known to have completed none. The
        prompt never counts.
        """
        tokens = (output[-self._window :] + new)[-self._window :]
        text = self._decode(tokens)
        return any(string in text for string in self._strings)
