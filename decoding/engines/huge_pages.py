"""Huge pages (2 MB instead of 4 KB) under weights that are in memory, on Linux.

A pass reads every weight once. With pages of 4 KB the processor translates another address every 4 KB, and its
prefetching stops there. No bit of a result changes.

Linux gives huge pages only on request where ``/sys/kernel/mm/transparent_hugepage/enabled`` says ``madvise``, as it
usually does. MADV_COLLAPSE (Linux 6.1) moves memory that is in use; on older kernels and other systems nothing happens.
"""

from __future__ import annotations

import ctypes
import logging
import re
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

_HUGE = 2 << 20  # bytes
_SMALLEST = 2 * _HUGE  # of a region: smaller ones gain nothing
_IN_USE = 0.9  # of a region: huge pages are whole, so that those of a sparse one would take memory
_HUGEPAGE, _COLLAPSE = 14, 25  # madvise's MADV_HUGEPAGE and MADV_COLLAPSE
_MAPS = Path("/proc/self/smaps")
_REGION = re.compile(  # anonymous, private, writable; then a line for each of its figures
    r"^([0-9a-f]+)-([0-9a-f]+) rw.p \S+ \S+ 0 *(?:\[heap\])?\n(?:\w+:.*\n)*?"
    r"Rss: *(\d+) kB\n(?:\w+:.*\n)*?AnonHugePages: *(\d+) kB$",
    re.MULTILINE,
)


class Region(NamedTuple):
    """A region of this process's memory in bytes: [start, end), how much of it is in use, and in huge pages."""

    start: int
    end: int
    used: int
    huge: int


def use_huge_pages() -> None:
    """Moves this process's large regions of anonymous memory to huge pages; logs why where the system cannot."""
    try:
        regions = read_regions(_MAPS.read_text())
        advise = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError) as error:
        log.info("no huge pages: %s", error)
        return
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for region in filter(is_worth_moving, regions):
        start, end = -(-region.start // _HUGE) * _HUGE, region.end // _HUGE * _HUGE
        if advise(start, end - start, _HUGEPAGE) or advise(start, end - start, _COLLAPSE):
            log.info("no huge pages for %.0f MB: error %d", (end - start) / 1e6, ctypes.get_errno())


def is_worth_moving(region: Region) -> bool:
    size = region.end - region.start
    return size >= _SMALLEST and region.used >= _IN_USE * size and region.huge < _IN_USE * region.used


def read_regions(smaps: str) -> list[Region]:
    """The anonymous, private, writable regions in the text of ``/proc/<pid>/smaps``."""
    return [
        Region(int(start, 16), int(end, 16), int(used) << 10, int(huge) << 10)
        for start, end, used, huge in _REGION.findall(smaps)
    ]
