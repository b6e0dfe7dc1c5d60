"""A fingerprint of model weights, which shows when derived files are stale. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from ..files import digest_of_files
from .gguf_record import read_record

_OF_A_DRAFT = ("draft.json", "head_ids.json")  # what a draft shares with its target, and the ids it may propose


def fingerprint(folder: str | Path) -> str:
    """The digest of config.json and all safetensors files of ``folder``, by name; for a recorded GGUF file its mark.

    Raises UserError for a broken record, OSError if the files cannot be read.
    """
    record = read_record(folder)
    if record is not None:
        return record.mark
    folder = Path(folder)
    others = [folder / name for name in _OF_A_DRAFT if (folder / name).is_file()]
    return digest_of_files([folder / "config.json", *others, *sorted(folder.glob("*.safetensors"))])
