"""The picture of a run on the page: drawn again from its settings, or the preview in its file."""

from __future__ import annotations

from base64 import b64encode
from functools import lru_cache
from io import BytesIO
from typing import Any

from decoding.errors import UserError
from decoding.pictures.draw import draw
from decoding.pictures.scenes import scene_of
from decoding.records.trace import Run

SCALE = 2
PNG = "data:image/png;base64,"


def run_picture(run: Run) -> dict[str, Any] | None:
    """{src, alt, caption, tokens} of the picture that the target read; None without one."""
    picture = run.picture
    if picture is None:
        return None
    size = f"{picture.width} × {picture.height} pixels, {picture.n_tokens} tokens"
    caption = (
        f"The target read this picture ({size}, {picture.seconds * 1e3:.0f} ms); a draft that reads text alone did not."
    )
    if picture.preview:
        src, alt = PNG + picture.preview, "The photograph that the target read"
        return {"src": src, "alt": alt, "caption": caption, "tokens": picture.n_tokens}
    try:
        src, alt = scene_picture(run.settings.picture)
    except UserError:  # a file from elsewhere may name things that are unknown here
        src, alt = "", "A scene that cannot be drawn here"
    return {"src": src, "alt": alt, "caption": caption, "tokens": picture.n_tokens}


@lru_cache(maxsize=200)
def scene_picture(text: str) -> tuple[str, str]:
    """A scene as a data URL of a PNG, and in words. Raises UserError."""
    scene, file = scene_of(text), BytesIO()
    draw(scene, SCALE).save(file, "PNG", optimize=True)
    things = ", ".join(f"{thing.what.color} {thing.what.kind}".strip() for thing in scene.things)
    return PNG + b64encode(file.getvalue()).decode(), f"A drawn scene, from left to right: {things}"
