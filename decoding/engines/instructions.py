"""What this CPU, or the one that is imitated, multiplies in hardware, and with which library."""

from __future__ import annotations

import torch

from ..cpu import imitated


def multiplies_bfloat16() -> bool:
    """Whether bfloat16 is multiplied in hardware (AVX512-BF16 or AMX)."""
    return not imitated() and bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def has_vectors() -> bool:
    """Whether torch's own kernels are vectorised here: the one for int4 is slow otherwise."""
    return "AVX" in torch.backends.cpu.get_cpu_capability()
