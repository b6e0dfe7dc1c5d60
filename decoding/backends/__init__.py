"""Backends run comparisons. Importing this package imports neither torch nor a particular backend."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    from .base import Backend


def on_zerogpu() -> bool:
    """Whether this is a Hugging Face Space with ZeroGPU."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def choose_backend(url: str | None = None, recorded: bool = False) -> Backend:
    """The backend for these arguments and this environment.

    ``url`` (or SPECULOSCOPE_BACKEND): another machine's served backend, whose token is in SPECULOSCOPE_TOKEN, or
    ``space:OWNER/NAME``, a running Space. ``recorded``: nothing runs live. Otherwise ZeroGPU if the environment has it,
    else this machine. Raises UserError for an invalid address or token, and on ZeroGPU if its package is missing.
    """
    url = url or os.environ.get("SPECULOSCOPE_BACKEND", "")
    if recorded:
        from .recorded import RecordedBackend

        return RecordedBackend()
    if url.startswith("space:"):
        from .space import SpaceBackend

        return SpaceBackend(url.removeprefix("space:"))
    if url:
        from .remote import RemoteBackend

        return RemoteBackend(url, os.environ.get("SPECULOSCOPE_TOKEN", ""))
    if on_zerogpu():
        try:
            from .zerogpu import ZeroGPUBackend
        except ModuleNotFoundError as error:
            if error.name != "spaces":
                raise
            sentence = "This Space lends GPUs, but the package spaces is missing: add it to requirements.txt."
            raise UserError(sentence) from error
        return ZeroGPUBackend()
    from .local import LocalBackend

    return LocalBackend()
