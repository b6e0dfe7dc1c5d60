"""Draws scenes with Pillow from the sprite sheet; no font of the system is needed."""

from __future__ import annotations

from functools import cache, lru_cache
from math import cos, pi, sin
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from .scenes import COLORS, DIGITS, SIDE, Ground, Scene, What, emoji_names

SPRITE = 48
COLUMNS = 15
SHEET = Path(__file__).with_name("sprites.png")
_SIGN = 160  # signs are drawn at this size and then made smaller
_OUTLINE = "#555555"


def draw(scene: Scene, scale: int = 1) -> Image.Image:
    """The picture, RGB, of SIDE * ``scale`` pixels a side. The offline model reads scale 1."""
    picture = _draw_ground(scene.ground, scale)
    for thing in scene.things:
        sprite = _sized(thing.what, thing.size * scale)
        corner = (thing.x * scale - sprite.width // 2, thing.y * scale - sprite.height // 2)
        picture.paste(sprite, corner, sprite)
    return picture


def _draw_ground(ground: Ground, scale: int) -> Image.Image:
    picture = Image.new("RGB", (SIDE * scale, SIDE * scale), ground.first)
    pen, step = ImageDraw.Draw(picture), 12 * scale
    for row in range(8):
        top = row * step
        if ground.pattern == "stripes" and row % 2:
            pen.rectangle((0, top, SIDE * scale, top + step - 1), ground.second)
        for column in range(8):
            left = column * step
            if ground.pattern == "checks" and (row + column) % 2:
                pen.rectangle((left, top, left + step - 1, top + step - 1), ground.second)
            if ground.pattern == "dots":
                pen.ellipse(
                    (left + step // 3, top + step // 3, left + step * 2 // 3, top + step * 2 // 3), ground.second
                )
    return picture


@lru_cache(maxsize=20_000)
def _sized(what: What, size: int) -> Image.Image:
    return sprite_of(what).resize((size, size), Image.Resampling.BOX if size < SPRITE else Image.Resampling.BICUBIC)


@lru_cache(maxsize=1_000)
def sprite_of(what: What) -> Image.Image:
    """The picture of one thing, RGBA with a transparent ground."""
    if what.color:
        return _sign(what)
    number = list(emoji_names().values()).index(what.kind)
    left, top = number % COLUMNS * SPRITE, number // COLUMNS * SPRITE
    return _sheet().crop((left, top, left + SPRITE, top + SPRITE))


@cache
def _sheet() -> Image.Image:
    with Image.open(SHEET) as sheet:
        return sheet.convert("RGBA")


def _sign(what: What) -> Image.Image:
    sign = Image.new("RGBA", (_SIGN, _SIGN))
    pen, color = ImageDraw.Draw(sign), COLORS[what.color]
    if what.kind in DIGITS:
        font, middle = ImageFont.load_default(_SIGN), (_SIGN // 2, _SIGN // 2)
        pen.text(middle, what.kind, color, font, anchor="mm", stroke_width=6, stroke_fill=_OUTLINE)
    elif what.kind == "circle":
        pen.ellipse((6, 6, _SIGN - 6, _SIGN - 6), color, _OUTLINE, width=6)
    else:
        corners = [(x * _SIGN, y * _SIGN) for x, y in _corners(what.kind)]
        pen.polygon(corners, color, _OUTLINE, width=6)
    return sign.resize((SPRITE, SPRITE), Image.Resampling.BOX)


def _corners(shape: str) -> list[tuple[float, float]]:
    """The corners of ``shape`` in a unit square."""
    if shape == "square":
        return [(0.1, 0.1), (0.9, 0.1), (0.9, 0.9), (0.1, 0.9)]
    if shape == "triangle":
        return [(0.5, 0.06), (0.96, 0.92), (0.04, 0.92)]
    if shape == "star":
        radii = [0.48 if number % 2 == 0 else 0.2 for number in range(10)]
        return [(0.5 + r * sin(n * pi / 5), 0.52 - r * cos(n * pi / 5)) for n, r in enumerate(radii)]
    # a heart, as 16 sin^3 t, 13 cos t - 5 cos 2t - 2 cos 3t - cos 4t
    turns = [number * pi / 30 for number in range(60)]
    heights = [13 * cos(t) - 5 * cos(2 * t) - 2 * cos(3 * t) - cos(4 * t) for t in turns]
    return [(0.5 + 0.46 * sin(t) ** 3, 0.45 - height / 36) for t, height in zip(turns, heights, strict=True)]
