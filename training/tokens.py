"""Token files: documents as one stream of 16-bit ids, cut into windows in a shuffled order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from decoding.errors import UserError
from training.files import replacing_file
from training.places import BUILD

TOKENS = BUILD / "tokens"
BOS = 0


def write_tokens(name: str, texts: list[str], tokenizer: PreTrainedTokenizerBase) -> Path:
    """Encodes the texts, each after a BOS, as one stream of uint16 in ``build/tokens/<name>.bin``."""
    path = TOKENS / f"{name}.bin"
    with replacing_file(path, "wb") as file:
        for start in range(0, len(texts), 512):
            batch = tokenizer(texts[start : start + 512], verbose=False)["input_ids"]
            file.write(np.concatenate([np.asarray(ids, dtype=np.uint16) for ids in batch]).tobytes())
    return path


def read_tokens(name: str) -> np.ndarray:
    """The stream of ids as a read-only memory map. Shape (tokens,), uint16."""
    path = TOKENS / f"{name}.bin"
    if not path.is_file() or path.stat().st_size == 0:
        raise UserError(f"There are no tokens in {path.name}. Run the earlier steps (`python -m training --help`).")
    return np.memmap(path, dtype=np.uint16, mode="r")


class Windows:
    """Windows of ``length + 1`` ids in shuffled order, each once per pass, addressed by number so that a run can
    resume.
    """

    def __init__(self, stream: np.ndarray, length: int, seed: int = 0) -> None:
        self.stream, self.length = stream, length
        self.count = (len(stream) - 1) // length
        if self.count < 1:
            raise UserError(f"The token stream is shorter than one window of {length} tokens.")
        self.order = np.random.default_rng(seed).permutation(self.count)

    def batch(self, start: int, size: int) -> torch.Tensor:
        """Windows ``start`` to ``start + size`` (numbered across passes) as int64, shape (size, length + 1).

        The first id of each is replaced by BOS, because prompts also start with BOS in the middle of a text.
        """
        rows = [int(self.order[index % self.count]) * self.length for index in range(start, start + size)]
        windows = np.stack([self.stream[row : row + self.length + 1] for row in rows]).astype(np.int64)
        windows[:, 0] = BOS
        return torch.from_numpy(windows)


def forget_tokens() -> None:
    """Removes the token files of an earlier tokenizer."""
    for path in TOKENS.glob("*.bin"):
        path.unlink()


def has_tokens() -> bool:
    """Whether both halves of the corpus are encoded."""
    return all((TOKENS / f"{name}.bin").is_file() for name in ("train", "held_out"))
