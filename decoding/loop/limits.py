"""Conditions that end a text: end of sequence, stop strings, the token limit, the context limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..records.trace import Finish


@dataclass(slots=True)
class Limits:
    """When a text ends. The conditions are the same for all lanes and depend only on the text, so that lanes agree.

    ``finish_at_limit`` names the origin of ``max_new_tokens``: the request ("length") or the context ("context").
    """

    max_new_tokens: int
    ends: frozenset[int] = frozenset()  # end-of-sequence ids; empty if they are ignored
    stop: StopStrings | None = None
    finish_at_limit: Finish = "length"

    def cut(self, output: list[int], new: list[int]) -> tuple[int, Finish | None]:
        """The number of tokens of ``new`` that belong to the text after ``output``, and why it ends there, if it
        does.
        """
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

    def __init__(self, strings: list[str], decode: Callable[[list[int]], str]) -> None:
        self._strings = strings
        self._decode = decode
        # Enough tokens to contain the longest string (a token has at least one byte) and the boundary before it.
        self._window = max(len(string.encode()) for string in strings) + 8

    def completes(self, output: list[int], new: list[int]) -> bool:
        """Whether the last token of ``output`` + ``new`` completes a stop string.

        Called for every token in turn, so that earlier tokens have completed none. The prompt never counts.
        """
        tokens = (output[-self._window :] + new)[-self._window :]
        text = self._decode(tokens)
        return any(string in text for string in self._strings)
