"""Photographs: checked, made small and encoded again, so that nothing of a file but its pixels goes on."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageOps

from ..errors import UserError, explained
from ..files import digest_of

MAX_FILE_BYTES = 20 * 2**20
MAX_PIXELS = 50_000_000
SIDE, PREVIEW_SIDE = 768, 128  # pixels of the longer side
FORMATS = {"PNG": "PNG", "JPEG": "JPEG", "WEBP": "WebP"}
START = "data:image/jpeg;base64,"
NAMED = "photograph "  # and its digest: how settings name one whose file they do not hold


def is_photo(picture: str) -> bool:
    """Whether a request's ``picture`` is a photograph, not a scene."""
    return picture.startswith(("data:", NAMED))


def pack_file(path: Path) -> str:
    """The photograph in the file at ``path`` as a request carries it. Raises UserError."""
    with explained(f"Cannot read the picture {path.name}"):
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"{path.name} is larger than {MAX_FILE_BYTES // 2**20} MB, the limit for a picture.")
        image = _opened(path.read_bytes(), path.name)
    return packed(image)


def packed(image: Image.Image) -> str:
    """A photograph as a request carries it."""
    file = BytesIO()
    image.save(file, "JPEG", quality=88)
    return START + b64encode(file.getvalue()).decode()


def photo_of(picture: str) -> Image.Image:
    """The photograph in a request, RGB, its longer side at most SIDE. Raises UserError."""
    if picture.startswith(NAMED):
        raise UserError("This run file does not contain its photograph: give the picture file again.")
    data = re.fullmatch("data:image/(?:png|jpeg|webp);base64,([A-Za-z0-9+/]+={0,2})", picture)
    try:
        file = b64decode(data[1]) if data else b""
    except ValueError:  # cut short
        file = b""
    return _opened(file, "This picture")


def named(image: Image.Image) -> str:
    """How settings name the photograph."""
    return f"{NAMED}{digest_of(image.tobytes())}"


def preview_of(image: Image.Image) -> str:
    """A small PNG in base64."""
    small, file = image.copy(), BytesIO()
    small.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE))
    small.quantize(128).save(file, "PNG", optimize=True)
    return b64encode(file.getvalue()).decode()


def _opened(data: bytes, name: str) -> Image.Image:
    """The picture in ``data``, upright, RGB and small. Raises UserError for anything but a picture of FORMATS."""
    kinds = ", ".join(FORMATS.values())
    try:
        with Image.open(BytesIO(data), formats=tuple(FORMATS)) as file:  # reads the head only
            if file.width * file.height > MAX_PIXELS:
                raise UserError(f"{name} has {file.width} × {file.height} pixels: at most {MAX_PIXELS:,} are read.")
            image = ImageOps.exif_transpose(file).convert("RGB")
    except UserError:
        raise
    except Exception as error:  # a broken file fails in any way: zlib, struct, decompression bombs
        raise UserError(f"{name} is not a picture that can be read here: use {kinds}.") from error
    image.thumbnail((SIDE, SIDE))
    return image
