"""What glibc does with freed memory, in a process of its own: it cannot be taken back."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from training.allocator import keep_freed_memory
kept = {keep} and keep_freed_memory()
def step():
    return torch.zeros(4_000_000).add_(1.0).sum()  # 16 MB, allocated, touched and freed
for _ in range(4):  # until the heap has grown
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keep: bool) -> tuple[bool, int]:
    code = FAULTS.format(keep=keep)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    kept, n = out.split()
    return kept == "1", int(n)


def test_freed_memory_is_kept():
    kept, with_it = faults(True)
    if not kept:
        pytest.skip("no glibc here, whose mallopt this is about")
    assert with_it < 10_000  # pages of 4 kB; ten buffers of 16 MB have 40,000
