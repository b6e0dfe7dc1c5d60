"""Who runs a comparison. Importing this imports neither torch nor a particular backend."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Backend


def on_zerogpu() -> bool:
    """Is this a Hugging Face Space with ZeroGPU?"""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def choose_backend(url: str | None = None, token: str = "", recorded: bool = False) -> Backend:
    """The backend for these arguments and this environment.

    ``url`` (or SPECULOSCOPE_BACKEND): another machine's served backend, with ``token`` (or SPECULOSCOPE_TOKEN).
    ``recorded``: nothing runs live. Otherwise ZeroGPU where the environment has it, else this machine.
    Raises UserError for an address that is none.
    """
    url = url or os.environ.get("SPECULOSCOPE_BACKEND", "")
    if recorded:
        from .recorded import RecordedBackend

        return RecordedBackend()
    if url:
        from .remote import RemoteBackend

        return RemoteBackend(url, token or os.environ.get("SPECULOSCOPE_TOKEN", ""))
    if on_zerogpu():
        from .zerogpu import ZeroGPUBackend

        return ZeroGPUBackend()
    from .local import LocalBackend

    return LocalBackend()
