"""Training of the chat model's drafts. A killed step resumes."""

from __future__ import annotations

import ctypes
import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import typer
from safetensors import SafetensorError

from decoding.errors import UserError
from training.align.commands import app as align

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
app.add_typer(align, name="align")

# Parameters of mallopt(3) as <malloc.h> numbers them.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
KEPT = 2**30
PADDING = 64 * 2**20


def keep_freed_memory() -> bool:
    """Makes glibc keep freed blocks of up to KEPT bytes. Returns False without glibc.

    A training step and a step of batched decoding allocate and free the same large buffers again and again. By default
    glibc returns each of them to the kernel at once, which must zero the pages again at the next step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    asked = {M_MMAP_THRESHOLD: KEPT, M_TRIM_THRESHOLD: 2 * KEPT - 1, M_TOP_PAD: PADDING}
    done = [mallopt(parameter, value) == 1 for parameter, value in asked.items()]  # each, even after a failure
    return all(done)


def main() -> None:
    """Runs the command line. Bad input and file errors end in one sentence, without a traceback."""
    keep_freed_memory()
    try:
        app()
    except UserError as error:
        sentence = str(error)
    except (OSError, SafetensorError) as error:  # safetensors raises its own on a full disk
        sentence = (
            f"A file could not be read or written: {error}. Free some space or check the permissions, and run the "
            "command again: it resumes."
        )
    else:
        return
    typer.echo(sentence, err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
