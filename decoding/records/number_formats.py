"""Names of the number formats, for what must not import torch: the modules of ``decoding/engines/formats``."""

from __future__ import annotations

from pathlib import Path
from pkgutil import iter_modules
from typing import Protocol

from ..errors import UserError

FORMATS = tuple(
    sorted(module.name for module in iter_modules([str(Path(__file__).parents[1] / "engines" / "formats")]))
)
CHOICES = ("auto", *FORMATS)


class Settings(Protocol):
    dtype: str
    weights: str


def number_format(settings: Settings) -> str:
    """The format that settings ask for. ``weights`` is how older run files and links ask for four bits."""
    return settings.dtype if settings.weights == "auto" else settings.weights


def check_format(settings: Settings) -> None:
    """Raises UserError for a format that does not exist, or for two that contradict each other."""
    for name in (settings.dtype, settings.weights):
        if name not in CHOICES:
            raise UserError(f"The number format must be one of {', '.join(CHOICES)}, not {name[:40]}.")
    if settings.weights not in ("auto", settings.dtype) and settings.dtype not in ("auto", "bfloat16"):
        raise UserError(f"Two number formats were named, {settings.dtype} and {settings.weights}: name one.")
