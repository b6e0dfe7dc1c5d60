"""How a target reads a picture that stands in its prompt: a scene, or a photograph."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import torch
from PIL import Image
from torch import Tensor

from ..errors import UserError, readable
from ..files import digest_of_files
from ..pictures.photo import is_photo, named, photo_of, preview_of
from ..pictures.scenes import SIDE, draw, scene_of
from ..records.trace import PictureInfo
from .inputs import EncodedPrompt
from .picture_encoder import TOKENS, WEIGHTS, PictureReader, load_reader
from .tokenizer import Tokenizer

GREY = (128, 128, 128)


class SceneEyes:
    """Reads scenes with the picture reader in ``folder``, for a target of ``width``."""

    def __init__(self, folder: Path, width: int) -> None:
        self._folder, self._width = folder, width

    def encode(self, tokenizer: Tokenizer, text: str, system: str, picture: str) -> EncodedPrompt:
        """``picture`` (as in a request) and ``text`` in one message of a chat. Raises UserError."""
        if is_photo(picture):
            raise UserError(
                "This target reads only drawn scenes, no photographs: type emoji, or choose a pair from the Hub that "
                "reads pictures."
            )
        scene = scene_of(picture)
        drawn = draw(scene)
        grey = self._grey  # read first: the first passes of a process are slow
        before = perf_counter()
        embeddings = self._reader.read(drawn)
        seconds = perf_counter() - before
        ids, at = tokenizer.encode_message(text, system)
        info = PictureInfo(scene.digest, drawn.width, drawn.height, at, TOKENS, seconds)
        placeholders = [min(tokenizer.eos_ids, default=0)] * TOKENS
        digest = f"{scene.digest}-{self._weights_digest}"
        return EncodedPrompt([*ids[:at], *placeholders, *ids[at:]], embeddings, at, digest, grey, info)

    @cached_property
    def _reader(self) -> PictureReader:
        return load_reader(self._folder, self._width)

    @cached_property
    def _weights_digest(self) -> str:
        return digest_of_files([self._folder / name for name in WEIGHTS])

    @cached_property
    def _grey(self) -> Tensor:
        return self._reader.read(Image.new("RGB", (SIDE, SIDE), GREY))


class PhotoEyes:
    """Reads photographs with a target of transformers that has a vision encoder of its own.

    The target's text model reads the same embeddings in every lane: they are computed once. Placeholders are all tokens
    from the picture's first one to its last, with those that mark rows of tiles between them.
    """

    def __init__(self, folder: Path, hf_model: Any) -> None:
        """Raises UserError if the model's processor cannot be loaded."""
        from transformers import AutoProcessor

        self._model = hf_model
        with readable(f"{folder.name} has no picture processor that can be loaded", "choose another model"):
            self._processor: Any = AutoProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        self._image_token: int = hf_model.config.image_token_id

    def encode(self, tokenizer: Tokenizer, text: str, system: str, picture: str) -> EncodedPrompt:
        """As :meth:`SceneEyes.encode`."""
        if system:
            raise UserError("This target takes no system message beside a picture: leave one of them out.")
        if not is_photo(picture):
            raise UserError("This target reads photographs, not scenes: give a picture file.")
        photo = photo_of(picture)
        inputs = self._inputs(tokenizer, text, photo)
        grey_inputs = self._inputs(tokenizer, text, Image.new("RGB", photo.size, GREY))
        grey, _ = self._embed(grey_inputs)  # read first: the first passes of a process are slow
        before = perf_counter()
        embeddings, positions = self._embed(inputs)
        seconds = perf_counter() - before
        ids = inputs["input_ids"][0].tolist()
        places = [place for place, token in enumerate(ids) if token == self._image_token]
        at, end = places[0], places[-1] + 1
        name = named(photo)
        digest = name.split()[-1]
        info = PictureInfo(digest, photo.width, photo.height, at, end - at, seconds, preview_of(photo))
        return EncodedPrompt(ids, embeddings[at:end], at, digest, grey[at:end], info, name, positions)

    def _inputs(self, tokenizer: Tokenizer, text: str, photo: Image.Image) -> dict[str, Tensor]:
        """The model's inputs. The name of a special token in ``text`` is read as letters."""
        before, after = tokenizer.picture_message(self._processor)
        inputs = dict(self._processor(text=before, images=[photo], return_tensors="pt", **tokenizer.bos_for(before)))
        typed, rest = tokenizer.encode_part(text, True), tokenizer.encode_part(after)
        end = torch.tensor([[*typed, *rest]])
        more = {
            "input_ids": end,
            "attention_mask": torch.ones_like(end),
            "mm_token_type_ids": torch.zeros_like(end),  # text
        }
        inputs |= {name: torch.cat([inputs[name], added], dim=1) for name, added in more.items() if name in inputs}
        device, dtype = self._model.device, self._model.dtype
        return {name: one.to(device, dtype if one.is_floating_point() else one.dtype) for name, one in inputs.items()}

    @torch.inference_mode()
    def _embed(self, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """The input embeddings [n, width] of the text model, and their positions [axes, n] if these have several axes.

        Raises UserError if the text model's layers read the picture once more.
        """
        found: dict[str, Any] = {}

        def stop(module: Any, args: Any, given: dict[str, Any]) -> NoReturn:
            found.update(given)
            raise _Embedded

        hook = self._model.get_decoder().register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self._model(**inputs, use_cache=False)
        except _Embedded:
            pass
        finally:
            hook.remove()
            if hasattr(self._model.base_model, "rope_deltas"):
                self._model.base_model.rope_deltas = None  # it would shift the next prompt, too
        if found.get("deepstack_visual_embeds") is not None:
            raise UserError("This target reads a picture again in later layers, which is not supported.")
        positions = found.get("position_ids")
        several = None if positions is None or positions.ndim != 3 else positions[-3:, 0]  # of four the first is unused
        return found["inputs_embeds"][0], several


class _Embedded(Exception):
    """The text model's inputs are known: nothing else of the pass is needed."""
