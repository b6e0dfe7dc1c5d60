"""Commands as a user types them, run in this process."""

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

from decoding.cli import main


class Ended(NamedTuple):
    """``err`` without the terminal's line breaks."""

    status: int
    out: str
    err: str


def command(*words: str) -> Ended:
    """Run ``python -m decoding WORDS``."""
    status, out, err = 0, io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(list(words))
        except SystemExit as end:
            status = int(end.code or 0)
    return Ended(status, out.getvalue(), " ".join(err.getvalue().split()))
