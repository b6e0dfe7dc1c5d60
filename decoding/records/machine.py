"""A description of this machine for the run file. Imports no torch."""

from __future__ import annotations

import math
import os
import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..cpu import imitated
from .trace import Machine


@lru_cache(maxsize=1)
def describe_machine(gpu: str | None = None) -> Machine:
    """Processor, memory, versions; ``gpu`` is the device's name if the models run on one."""
    return Machine(
        processor=(_processor() + (f", as {imitated()}" if imitated() else ""))[:400],
        cores=os.cpu_count() or 1,
        memory_gb=round(memory_bytes() / 2**30, 1),
        gpu=gpu,
        system=f"{platform.system()} {platform.machine()}"[:400],
        python=platform.python_version(),
        torch=_version("torch"),
        transformers=_version("transformers"),
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: platform gives a shorter name
    return platform.processor() or platform.machine() or "unknown"


def has_gpu() -> bool:
    """Whether a driver for NVIDIA's GPUs is there."""
    return any(Path(place).exists() for place in ("/dev/nvidiactl", "/dev/dxg"))


def memory_bytes() -> int:
    """The memory of the machine, or of the container if that is less; 0 if unknown."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
    return int(min(whole, container_memory()[0]))


def container_memory() -> tuple[float, int]:
    """The limit of the container's memory in bytes, infinite if there is none, and what is in use of it: files that are
    only cached do not count.
    """
    for limit, used, stat in _CONTAINER:
        try:
            lines = (CONTROL_GROUPS / stat).read_text().splitlines()
            cached = (int(line.split()[1]) for line in lines if line.startswith(("active_file ", "inactive_file ")))
            most, in_use = int((CONTROL_GROUPS / limit).read_text()), int((CONTROL_GROUPS / used).read_text())
            return most, max(0, in_use - sum(cached))
        except (OSError, ValueError):  # of the other version, or not Linux; "max": no limit
            continue
    return math.inf, 0


CONTROL_GROUPS = Path("/sys/fs/cgroup")  # of Linux; a container sees its own here
_CONTAINER = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
