"""How a target reads a picture that stands in its prompt."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Protocol

from PIL import Image
from torch import Tensor

from ..pictures.draw import draw
from ..pictures.scenes import SIDE, scene_of
from ..records.trace import PictureInfo
from .inputs import EncodedPrompt
from .picture_encoder import TOKENS, PictureReader, load_reader
from .tokenizer import Tokenizer

GREY = (128, 128, 128)


class Eyes(Protocol):
    """What makes a prompt with a picture for one target."""

    def encode(self, tokenizer: Tokenizer, text: str, system: str, picture: str) -> EncodedPrompt:
        """``picture`` (as in a request) and ``text`` in one message of a chat. Raises UserError."""
        ...


class SceneEyes:
    """Reads scenes with the picture reader in ``folder``, for a target of ``width``."""

    def __init__(self, folder: Path, width: int) -> None:
        self._folder, self._width = folder, width

    def encode(self, tokenizer: Tokenizer, text: str, system: str, picture: str) -> EncodedPrompt:
        scene = scene_of(picture)
        drawn = draw(scene)
        grey = self._grey  # read first: the first passes of a process are slow
        before = perf_counter()
        embeddings = self._reader.read(drawn)
        seconds = perf_counter() - before
        ids, at = tokenizer.encode_message(text, system)
        info = PictureInfo(scene.digest, drawn.width, drawn.height, at, TOKENS, seconds)
        placeholders = [min(tokenizer.eos_ids, default=0)] * TOKENS
        return EncodedPrompt([*ids[:at], *placeholders, *ids[at:]], embeddings, at, scene.digest, grey, info)

    @cached_property
    def _reader(self) -> PictureReader:
        return load_reader(self._folder, self._width)

    @cached_property
    def _grey(self) -> Tensor:
        return self._reader.read(Image.new("RGB", (SIDE, SIDE), GREY))
