"""How glibc treats freed memory, in a separate process each time: the setting cannot be undone."""

import platform
import subprocess
import sys

FAULTS = """
import resource, torch
from training.allocator import keep_freed_memory
kept = {keep} and keep_freed_memory()
def step():
    return torch.zeros(16_000_000).add_(1.0).sum()  # 64 MB, allocated, touched and freed
for _ in range(12):  # until the heap has grown
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keep: bool) -> tuple[bool, int]:
    """(whether the setting was accepted, page faults of ten steps)."""
    code = FAULTS.format(keep=keep)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    kept, n = out.split()
    return kept == "1", int(n)


def test_glibc_keeps_freed_memory_and_others_say_that_they_do_not():
    (_, without), (kept, with_it) = faults(False), faults(True)
    assert kept == (platform.libc_ver()[0] == "glibc")
    assert with_it < without / 5 or not kept
