"""Keeps memory that torch frees within the process.

A training step and a step of batched decoding allocate and free the same large buffers again and again. By default
glibc returns each of them to the kernel at once, which must zero the pages again at the next step.
"""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3) as <malloc.h> numbers them.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
KEPT = 2**30
PADDING = 64 * 2**20


def keep_freed_memory() -> bool:
    """Makes glibc keep freed blocks of up to KEPT bytes. Returns False without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    asked = {M_MMAP_THRESHOLD: KEPT, M_TRIM_THRESHOLD: 2 * KEPT - 1, M_TOP_PAD: PADDING}
    done = [mallopt(parameter, value) == 1 for parameter, value in asked.items()]  # each, even after a failure
    return all(done)
