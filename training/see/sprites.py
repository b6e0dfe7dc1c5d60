"""The sprite sheet of the scenes, cut from the font Noto Color Emoji (OFL; Debian: fonts-noto-color-emoji)."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from decoding.errors import UserError
from decoding.pictures.draw import COLUMNS, SHEET, SPRITE
from training.files import replacing_file

FONT = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
STRIKE = 109  # the one size that the font's bitmaps have
KINDS = Path(__file__).with_name("kinds.txt")


def write_sheet(font_file: Path = FONT) -> int:
    """Draws the emoji in kinds.txt into one picture, their names beside it; the number of emoji.

    Raises UserError if the font is missing.
    """
    if not font_file.is_file():
        raise UserError(f"{font_file} is missing. Install it: apt-get install fonts-noto-color-emoji")
    font = ImageFont.truetype(str(font_file), STRIKE)
    names = dict(line.split(" ", 1) for line in KINDS.read_text(encoding="utf-8").splitlines())
    sheet = Image.new("RGBA", (COLUMNS * SPRITE, -(-len(names) // COLUMNS) * SPRITE))
    for number, emoji in enumerate(names):
        sheet.paste(_sprite(emoji, font), (number % COLUMNS * SPRITE, number // COLUMNS * SPRITE))
    with replacing_file(SHEET, "wb") as file:
        sheet.save(file, "PNG", optimize=True)
    with replacing_file(SHEET.with_suffix(".json")) as file:
        json.dump(names, file, ensure_ascii=False, indent=1)
    return len(names)


def _sprite(emoji: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    """The emoji without its margins, in the middle of a square."""
    drawn = Image.new("RGBA", (2 * STRIKE, 2 * STRIKE))
    pen = ImageDraw.Draw(drawn)
    pen.text((STRIKE // 4, STRIKE // 4), emoji.replace("\ufe0f", ""), font=font, embedded_color=True)
    drawn = drawn.crop(drawn.getbbox())
    square = Image.new("RGBA", (max(drawn.size), max(drawn.size)))
    square.paste(drawn, ((square.width - drawn.width) // 2, (square.height - drawn.height) // 2))
    return square.resize((SPRITE, SPRITE), Image.Resampling.LANCZOS)
