"""Display text of tokens, whose bytes may make a character only together; numbers in sentences; a table as Markdown."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence

from .trace import TokenText


def pieces(ids: Sequence[int], vocab: Mapping[int, TokenText], special: bool = False) -> list[str]:
    """One display string per token, such that ``"".join`` gives the whole text. ``special`` tokens on demand.

    A character whose UTF-8 bytes span several tokens is shown at the token that completes it; the tokens before it show
    nothing (""). Bytes that never complete a character become U+FFFD at the token where that is certain. An id missing
    from ``vocab`` becomes U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    shown = []
    for token in ids:
        entry = vocab.get(token)
        if entry is not None and entry.bytes is not None:
            shown.append(decoder.decode(_from_hex(entry.bytes)))
        else:  # complete UTF-8 by itself: an open character before it stays incomplete
            hidden = entry is not None and entry.special and not special
            text = "" if hidden else entry.text if entry else "\ufffd"
            shown.append(decoder.decode(b"", final=True) + text)
            decoder.reset()
    if shown:
        shown[-1] += decoder.decode(b"", final=True)
    return shown


def whole_text(ids: Sequence[int], vocab: Mapping[int, TokenText], special: bool = False) -> str:
    """The text of ``ids``; see :func:`pieces`."""
    return "".join(pieces(ids, vocab, special))


def first_line(text: str) -> str:
    """The first line that is not empty, as a title; "" if there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:80]


_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


def in_words(n: int) -> str:
    """A number of things in a sentence."""
    return _NUMBERS[n] if n < len(_NUMBERS) else str(n)


def counted(n: int, what: str) -> str:
    """ "1 thread", "2 threads"."""
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_escaped, line)) + " |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b"\xff"  # shown as U+FFFD, like any byte that is not a character
