"""Scenes: one to six things on a plain or patterned ground, as data, and their drawing with Pillow from a sprite sheet;
no font of the system is needed. The same scene always gives the same picture.

A thing is an emoji of the sprite sheet, or a sign: a coloured shape or digit. Coordinates are pixels of a square of
SIDE x SIDE; a picture may be drawn larger. No two things overlap, and the centres of any two lie at least APART
pixels apart from left to right, so that "left of" is never in doubt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from math import cos, pi, sin
from pathlib import Path
from random import Random

from PIL import Image, ImageDraw, ImageFont

from ..errors import UserError
from ..files import digest_of

SIDE = 96
MOST_THINGS = 6
MOST_CHARS = 400  # of a scene as text
APART = 5
LEAST_SIZE, MOST_SIZE = 20, 40
SHAPES = ("circle", "square", "triangle", "star", "heart")
DIGITS = tuple("0123456789")
COLORS = {
    "red": "#e03131",
    "blue": "#1c5fd4",
    "green": "#2b9a3e",
    "yellow": "#f9d71c",
    "purple": "#8e3fc0",
    "pink": "#f78fb8",
    "black": "#1a1a1a",
    "white": "#ffffff",
}
PATTERNS = ("plain", "stripes", "checks", "dots")
_NAMES = Path(__file__).with_name("sprites.json")  # of the sheet's emoji
SPRITE = 48
COLUMNS = 15
SHEET = Path(__file__).with_name("sprites.png")
_SIGN = 160  # signs are drawn at this size and then made smaller
_OUTLINE = "#555555"


@cache
def emoji_names() -> dict[str, str]:
    """The emoji of the sprite sheet, in its order, with their English names."""
    return json.loads(_NAMES.read_text(encoding="utf-8"))


@cache
def kinds() -> tuple[str, ...]:
    """The names of all kinds of things: emoji, shapes, digits."""
    return (*emoji_names().values(), *SHAPES, *DIGITS)


@dataclass(frozen=True, slots=True)
class What:
    """A kind of thing by name, and its colour where it is a sign."""

    kind: str
    color: str = ""


@dataclass(frozen=True, slots=True)
class Thing:
    what: What
    x: int
    y: int
    size: int


@dataclass(frozen=True, slots=True)
class Ground:
    """``first`` is the colour of a plain ground; patterns add ``second``. Both are "#rrggbb"."""

    pattern: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Scene:
    """The things from left to right."""

    things: tuple[Thing, ...]
    ground: Ground

    @property
    def digest(self) -> str:
        """16 hex digits that identify the scene: what lies where, on which ground."""
        return digest_of(json.dumps(asdict(self), sort_keys=True).encode())


def layout(whats: Sequence[What], seed: int) -> Scene:
    """``whats`` at places and in sizes that ``seed`` decides. Raises UserError if there are none or too many."""
    if not 1 <= len(whats) <= MOST_THINGS:
        raise UserError(f"A scene has one to {MOST_THINGS} things, not {len(whats)}. Add or remove some.")
    random = Random(seed)
    most = MOST_SIZE if len(whats) <= 3 else MOST_SIZE - 6 * (len(whats) - 3)
    things: list[Thing] = []
    while len(things) < len(whats):
        things = []
        for what in whats:
            if thing := _free_place(what, most, things, random):
                things.append(thing)
    return Scene(tuple(sorted(things, key=lambda thing: thing.x)), _ground(random))


def _free_place(what: What, most: int, others: Sequence[Thing], random: Random) -> Thing | None:
    """``what`` where it overlaps none of ``others``; None if 30 tries find no place."""
    for _ in range(30):
        size = random.randint(LEAST_SIZE, most)
        half = (size + 1) // 2
        thing = Thing(what, random.randint(half, SIDE - half), random.randint(half, SIDE - half), size)
        if all(_is_clear(thing, other) for other in others):
            return thing
    return None


def _is_clear(one: Thing, other: Thing) -> bool:
    aside, below = abs(one.x - other.x), abs(one.y - other.y)
    return aside >= APART and 2 * max(aside, below) >= one.size + other.size


def _ground(random: Random) -> Ground:
    """Pale colours, the second close to the first, so that all things stand out."""
    first = [random.randint(190, 250) for _ in range(3)]
    second = [min(255, max(150, level + random.randint(-30, 30))) for level in first]
    pattern = random.choice((*PATTERNS, "plain"))
    return Ground(pattern, *("#" + bytes(color).hex() for color in (first, second)))


def scene_of(text: str) -> Scene:
    """The scene that ``text`` writes: things, and "#" with the seed of their places if it is not 0: "🐱🐶 red-star #3".

    Raises UserError with a sentence for anything else.
    """
    if len(text) > MOST_CHARS:
        raise UserError(f"A scene is written in at most {MOST_CHARS} characters, not {len(text):,}.")
    things, _, seed = text.partition("#")
    if seed.strip() and not (seed.strip().isdecimal() and len(seed.strip()) <= 9):
        raise UserError(
            f"# is followed by the number of an arrangement, such as #3 (at most 9 digits), not {seed.strip()[:20]!r}."
        )
    return layout(what_of(things), int(seed.strip() or 0))


def what_of(text: str) -> list[What]:
    """The things that ``text`` names, in order: emoji, and signs such as red-star or blue-7. Raises UserError."""
    found = []
    for part in text.replace("\ufe0f", "").split():  # the selector of coloured drawing
        color, _, kind = part.lower().partition("-")
        if color in COLORS and kind in (*SHAPES, *DIGITS):
            found.append(What(kind, color))
        else:
            found += _emoji_of(part)
    return found


def _emoji_of(text: str) -> list[What]:
    found, rest = [], text
    names = {emoji.replace("\ufe0f", ""): name for emoji, name in emoji_names().items()}
    while rest:
        emoji = next((emoji for emoji in names if rest.startswith(emoji)), None)
        if emoji is None:
            raise UserError(
                f"{rest[:20]!r} is neither one of the {len(names)} emoji of the scenes "
                "nor a sign such as red-star or blue-7: try an animal, a fruit or a vehicle, or pick an example."
            )
        found.append(What(names[emoji]))
        rest = rest.removeprefix(emoji)
    return found


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
