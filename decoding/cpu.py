"""How a lesser CPU is imitated. Imports no torch.

SPECULOSCOPE_CPU names a class of CPUs that a process is to imitate (``make test-cpus``), on a machine that offers more:

- ``avx2``: AVX2 alone (most laptops before 2024, Zen 2 and 3): no half-precision instructions;
- ``avx512``: AVX512 without bfloat16 (Ice Lake, Cascade Lake);
- ``plain``: no compiled products (engines/compiled/) and none of torch's vector kernels, which is the least.

Whatever a class lacks is then not used by torch's own kernels, oneDNN and this program. The clock, the caches and the
memory stay those of the machine, so figures taken so are only imitations. Nothing is added: with instructions that the
CPU lacks, libraries would crash.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

IMITATED = "SPECULOSCOPE_CPU"

_SWITCHES = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
_SETTINGS = {"avx2": ("AVX2", "avx2"), "avx512": ("AVX512_CORE_VNNI", "avx512"), "plain": ("SSE41", "default")}
CLASSES = tuple(_SETTINGS)
_NEEDED = {"avx2": "avx2", "avx512": "avx512f"}  # instructions, as Linux names them
_CPUINFO = Path("/proc/cpuinfo")


def imitated() -> str:
    """The class of CPUs that this process imitates; "" if none. Raises ValueError for an unknown one."""
    name = os.environ.get(IMITATED, "")
    if name and name not in CLASSES:
        raise ValueError(f"{IMITATED} must be one of {', '.join(CLASSES)}, not {name[:40]}.")
    return name


def imitate() -> None:
    """Sets what libraries read from the environment when they are loaded; call it before torch computes anything.

    Raises ValueError for a class whose instructions this CPU lacks.
    """
    if (name := imitated()) and name not in possible():
        raise ValueError(f"This CPU lacks instructions of {name}: set {IMITATED} to one of {', '.join(possible())}.")
    os.environ.update(zip(_SWITCHES, _SETTINGS.get(name, ())))


def possible() -> tuple[str, ...]:
    """The classes that this machine can imitate; without Linux only those that need no special instructions."""
    try:
        found = re.search(r"^flags\s*:(.*)$", _CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    flags = found[1].split() if found else []
    return tuple(name for name in CLASSES if name not in _NEEDED or _NEEDED[name] in flags)
