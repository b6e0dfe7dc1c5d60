"""Texts on disk: one safetensors file per few hundred texts, so that an interrupted run loses little."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from decoding.files import write_whole

from .stream import Text


def save_texts(texts: list[Text], file: Path) -> None:
    """Writes texts to a file, atomically."""
    tensors = {
        "ids": np.concatenate([text.ids for text in texts]),
        "top_ids": np.concatenate([text.top_ids for text in texts]),
        "top_logp": np.concatenate([text.top_logp for text in texts]),
        "lengths": np.array([len(text.ids) for text in texts], dtype=np.int64),
        "answers": np.array([text.answer for text in texts], dtype=np.int64),
        "temperatures": np.array([text.temperature for text in texts], dtype=np.float32),
    }
    kept = [text.states for text in texts if text.states is not None]
    if len(kept) == len(texts):
        tensors["states"] = np.concatenate(kept)
    write_whole(file, save(tensors, {"prompts": json.dumps([text.prompt for text in texts])}))


def shard_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("texts-*.safetensors"))


def load_texts(file: Path, with_states: bool = False) -> Iterator[Text]:
    """The texts of a file; ``with_states``: with the hidden states, where they were kept, which stay in the file."""
    states = _mapped_states(file) if with_states else None
    with safe_open(file, "np") as shard:
        prompts = json.loads(shard.metadata()["prompts"])
        ids, top_ids, top_logp = (shard.get_tensor(name) for name in ("ids", "top_ids", "top_logp"))
        lengths, answers, temperatures = (shard.get_tensor(name) for name in ("lengths", "answers", "temperatures"))
    ends = lengths.cumsum()
    for index, prompt in enumerate(prompts):
        part = slice(int(ends[index] - lengths[index]), int(ends[index]))
        known = ids[part], int(answers[index]), top_ids[part], top_logp[part], prompt, float(temperatures[index])
        yield Text(*known, None if states is None else states[part])


def _mapped_states(file: Path) -> np.ndarray | None:
    """The states in a file as a view of it, ten times as large as all else there; None where none were kept."""
    with file.open("rb") as content:
        size = int.from_bytes(content.read(8), "little")
        entry = json.loads(content.read(size)).get("states")
    if entry is None:
        return None
    return np.memmap(file, np.uint16, "r", 8 + size + entry["data_offsets"][0], tuple(entry["shape"]))


def all_texts(folder: Path) -> Iterator[Text]:
    """All texts in a folder, in the order in which they were written."""
    for file in shard_files(folder):
        yield from load_texts(file)
