"""A short name for a set of weights, to tell when what is derived from them is stale. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from ..files import digest_of_files


def fingerprint(folder: str | Path) -> str:
    """The digest of config.json and all safetensors files of ``folder``, by name."""
    folder = Path(folder)
    return digest_of_files([folder / "config.json", *sorted(folder.glob("*.safetensors"))])
