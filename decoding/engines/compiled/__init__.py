"""Code that LLVM compiles for this CPU when it is first needed: products by packed matrices, attention, whole layers,
and what policies read from a draft's logits.

Needs a CPU that widens float16: x86 with AVX2, FMA and F16C, or AArch64 (run in an emulator only so far; what is
compiled is compared with torch's results before it is used).
"""

from __future__ import annotations

import ctypes
import logging
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from struct import pack
from typing import Any, TypeVar

import torch

from ...cpu import imitated
from .writer import OPENMP, Cpu, Writer

log = logging.getLogger(__name__)

T = TypeVar("T")
_SHARED = 1 << 18  # multiply-adds: with fewer, sharing takes longer than the work
_NEEDED = ("avx2", "fma", "f16c")  # on x86, as LLVM names them


class Function:
    """A compiled function of one pointer to int64 fields."""

    def __init__(self, address: int, openmp: Any, keep: Any) -> None:
        """``openmp``: the library whose threads may share a call, or None. ``keep``: what owns the code."""
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        self.address, self._openmp, self._keep = address, openmp, keep

    def __call__(self, *fields: int, parts: int = 1, work: int = 0) -> None:
        """Calls it with ``fields``. Where the ``work``, in multiply-adds, is worth sharing, as many threads as torch
        uses share its ``parts``.
        """
        arguments = pack(f"{len(fields)}q", *fields)  # a ctypes array takes ten times as long
        shared = work >= _SHARED and self._openmp is not None
        threads = min(torch.get_num_threads(), parts) if shared else 1
        if threads == 1:
            self._call(arguments)
        else:
            self._openmp.GOMP_parallel(ctypes.c_void_p(self.address), arguments, threads, 0)


def compiled(check: Callable[..., bool]) -> Callable[[Callable[..., T | None]], Callable[..., T | None]]:
    """What the decorated ``make(cpu, ...)`` compiles, once for each class of CPUs and whatever else it is given; None
    where this CPU or LLVM cannot have it, or where ``check``, which is given the same, fails.
    """

    def decorate(make: Callable[..., T | None]) -> Callable[..., T | None]:
        return wraps(make)(lambda *given: _made(make, check, imitated(), *given))

    return decorate


@cache
def _made(make: Callable, check: Callable, cpu_class: str, *given: Any) -> Any:
    try:
        cpu = this_cpu()
        made = None if cpu is None else make(cpu, *given)
    except (ImportError, OSError, RuntimeError) as error:
        log.warning("nothing is compiled, so that models are slower: %s", error)
        return None
    if made is not None and not check(made, *given):
        log.warning("compiled code is wrong on this CPU, and not used")
        return None
    return made


def this_cpu() -> Cpu | None:
    """This CPU, or the imitated one; None for one that has not what is needed."""
    lesser = imitated()
    if lesser == "plain":
        return None
    import llvmlite.binding as llvm

    features = llvm.FeatureMap()
    with suppress(RuntimeError):  # on some systems LLVM cannot tell
        features = llvm.get_host_cpu_features()
    if platform.machine().lower() in ("x86_64", "amd64"):
        if not all(features.get(name) for name in _NEEDED):
            return None
    elif platform.machine().lower() not in ("aarch64", "arm64"):
        return None
    wide = bool(features.get("avx512f")) and lesser != "avx2"
    name = ("x86-64-v4" if wide else "x86-64-v3") if lesser else llvm.get_host_cpu_name()
    pairs = wide and not lesser and bool(features.get("avx512bf16"))
    shared = find_openmp() is not None
    return Cpu(llvm.get_default_triple(), name, "" if lesser else features.flatten(), wide, pairs, shared)


def load(writer: Writer, cpu: Cpu) -> dict[str, Function]:
    """The functions that ``writer`` wrote, by name."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    openmp, outside = find_openmp(), dict[str, int | None](writer.outsiders)
    if openmp is not None:
        outside |= {name: ctypes.cast(openmp[name], ctypes.c_void_p).value for name in OPENMP}
    for name, address in outside.items():
        llvm.add_symbol(name, address)
    module = llvm.parse_assembly(writer.code())
    module.verify()
    machine = llvm.Target.from_triple(cpu.triple).create_target_machine(cpu.name, cpu.features, opt=3)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return {name: Function(engine.get_function_address(name), openmp, engine) for name in writer.entries}


@cache
def find_openmp() -> Any | None:
    """The OpenMP that torch was linked with; None if that is none, or one without GNU's calls."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{suffix}"))  # and what it needs
        library.GOMP_parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        library.GOMP_parallel.restype = None
        for name in OPENMP:
            getattr(library, name)
    except (OSError, AttributeError) as error:
        log.info("compiled code runs in one thread: %s", error)
        return None
    return library
