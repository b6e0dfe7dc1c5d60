"""A short name for a set of weights, to tell when what is derived from them is stale. Imports no torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

_BLOCK = 1 << 20


def fingerprint(folder: str | Path) -> str:
    """The first 16 hex digits of a SHA-256 over config.json and all safetensors files of ``folder``, by name."""
    folder = Path(folder)
    digest = hashlib.sha256()
    for path in [folder / "config.json", *sorted(folder.glob("*.safetensors"))]:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()[:16]
