"""Speculative decoding under many lookahead policies: a library and a command line (``python -m decoding``)."""

import os

# Idle OpenMP threads must sleep, not spin: with any other busy process (a browser, a page's server) spinning makes
# small forward passes a hundred times slower. It is read when torch loads OpenMP, hence here, before any torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The heads' matrices are small: a second BLAS thread costs more to wake than it helps. Read when numpy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
