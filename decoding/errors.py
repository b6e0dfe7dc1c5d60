"""The two exceptions of this program: bad input, explained in one sentence, and a requested stop."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class UserError(ValueError):
    """Bad input, with a sentence that says what to do.

    User interfaces (page, command line, HTTP) show ``str(error)`` unchanged and no traceback.
    """


class Cancelled(Exception):
    """A stop was requested. Raised where only an exception can end the work."""


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns an OSError into a UserError: ``what`` failed, as the beginning of a sentence, and the system's reason."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: {error.strerror or error}.") from error


@contextmanager
def readable(what: str, instead: str) -> Iterator[None]:
    """Turns whatever a library raises for a broken file into a UserError: ``what`` failed, as the beginning of a
    sentence, the reason, and what to do ``instead``. UserErrors, a stop and lack of memory stay what they are.
    """
    try:
        yield
    except Exception as error:  # a broken file fails in any way
        if isinstance(error, UserError | Cancelled) or is_out_of_memory(error):
            raise
        raise UserError(f"{what} ({first_line(error)}): {instead}.") from error


def sentence_of(error: Exception) -> str:
    """The sentence that a user sees for ``error``."""
    if isinstance(error, UserError):
        return str(error)
    if is_out_of_memory(error):
        what = "machine" if isinstance(error, MemoryError) or _CPU_ALLOCATOR in str(error) else "GPU"
        return f"The {what} ran out of memory: choose a smaller pair, a shorter prompt or fewer new tokens."
    fault = type(error).__name__ + (f": {first_line(error)}" if str(error).strip() else "")
    return f"The program failed ({fault}). Try again; if it happens again, see the program's log."


def first_line(error: Exception) -> str:
    """The first line of what ``error`` says, for a sentence; the name of its type if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def first_fault(error: Any) -> str:
    """The first fault in data from elsewhere, as the end of a sentence. ``error``: pydantic's ValidationError, or the
    RecursionError of data that are nested too deeply.
    """
    if isinstance(error, RecursionError):
        return "it is nested too deeply."
    first, *others = error.errors(include_input=False, include_url=False, include_context=False)
    parts = (f"no. {part + 1}" if isinstance(part, int) else part[:60] for part in first["loc"])
    where = ", ".join(parts)[:200]
    more = f" ({len(others)} more error{'s' * (len(others) > 1)})" if others else ""
    said = f"{f'at {where}: ' if where else ''}{first['msg'].removeprefix('Value error, ')[:300].rstrip('.')}{more}"
    return said if said.endswith("?") else f"{said}."


def is_out_of_memory(error: Exception) -> bool:
    """Python's own error, or torch's (recognised by name and message: this module imports no torch)."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(words in str(error) for words in (_CPU_ALLOCATOR, "CUBLAS_STATUS_ALLOC_FAILED"))


_CPU_ALLOCATOR = "DefaultCPUAllocator"  # in the bare RuntimeError that torch raises when CPU memory runs out
