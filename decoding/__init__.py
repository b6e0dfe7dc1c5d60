"""Speculative decoding with many lookahead policies: a library and a command line (``python -m decoding``)."""

import os

# Idle OpenMP threads must sleep, not spin: with another busy process, spinning makes small forward passes a hundred
# times slower. The variable is read when torch loads OpenMP, so it is set before any import of torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The heads' matrices are small: a second BLAS thread costs more to wake than it helps. Read when numpy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# torch's own tensors in huge pages from the start, which engines/huge_pages.py then need not move. Read at its first
# large allocation.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

from .cpu import imitate

try:
    imitate()
except ValueError as error:  # a sentence for whoever set the variable
    raise SystemExit(str(error)) from error
