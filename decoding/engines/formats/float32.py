"""float32: holds every checkpoint's values, and runs everywhere. Compiled products where they can be had."""

from __future__ import annotations

import torch

from . import WeightFormat


class Float32(WeightFormat):
    name = "float32"
    compute = torch.float32
    layer_bytes = head_bytes = reduced_head_bytes = 4
    holds = frozenset({"float32", "bfloat16", "float16"})
    general = True


FORMAT = Float32()
