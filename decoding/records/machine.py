"""A description of this machine for the run file. Imports no torch."""

from __future__ import annotations

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
    """The machine's memory; 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
