"""The two exceptions of this program: bad input, told in a sentence; and a stop that was asked for."""


class UserError(ValueError):
    """Bad input, told in a sentence that says what to do about it.

    Whoever talks to a person (page, command line, HTTP) shows ``str(error)`` as it is and no traceback.
    """


class Cancelled(Exception):
    """A stop was asked for where only an exception leads out."""


def sentence_of(error: Exception) -> str:
    """What to tell a person of ``error``."""
    if isinstance(error, UserError):
        return str(error)
    if is_out_of_memory(error):
        what = "machine" if isinstance(error, MemoryError) or _CPU_ALLOCATOR in str(error) else "GPU"
        return f"The {what} ran out of memory: choose a smaller pair, a shorter prompt or fewer new tokens."
    first_line = (str(error).splitlines() or [""])[0][:200]
    fault = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    return f"The program itself broke down ({fault}). Try again; if it happens once more, the program's log tells more."


def is_out_of_memory(error: Exception) -> bool:
    """Python's own error, or torch's (told by name and words: this module imports no torch)."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(words in str(error) for words in (_CPU_ALLOCATOR, "CUBLAS_STATUS_ALLOC_FAILED"))


_CPU_ALLOCATOR = "DefaultCPUAllocator"  # in what torch raises where a CPU's memory ends: a bare RuntimeError
