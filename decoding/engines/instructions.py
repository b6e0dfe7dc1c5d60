"""What this CPU, or the one that is imitated, multiplies in hardware, and with which library."""

from __future__ import annotations

import torch

from ..cpu import imitated


def multiplies_bfloat16() -> bool:
    """Whether bfloat16 is multiplied in hardware (AVX512-BF16 or AMX)."""
    return not imitated() and bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def packs() -> bool:
    """Whether oneDNN, which packs weights, is available."""
    return imitated() != "plain" and torch.backends.mkldnn.is_available()


def packs_bfloat16() -> bool:
    """Whether oneDNN packs bfloat16, in hardware or imitated by it."""
    return packs() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def has_vectors() -> bool:
    """Whether torch's own kernels are vectorised here: the one for int4 is slow otherwise."""
    return "AVX" in torch.backends.cpu.get_cpu_capability()
