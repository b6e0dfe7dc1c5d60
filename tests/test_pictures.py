"""Scenes as data, their drawing, and what reads them."""

import json
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from decoding.engines.picture_encoder import GRID, TOKENS, WEIGHTS, Cells, PictureReader, load_reader, pixels, slots_of
from decoding.errors import UserError
from decoding.pictures import draw as drawing
from decoding.pictures.draw import SPRITE, draw, sprite_of
from decoding.pictures.scenes import (
    APART,
    COLORS,
    DIGITS,
    MOST_THINGS,
    SHAPES,
    SIDE,
    What,
    emoji_names,
    kinds,
    layout,
    scene_of,
    what_of,
)

READER = Path(__file__).resolve().parents[1] / "models" / "smollm2-135m" / "pictures"
whats = st.one_of(
    st.sampled_from(sorted(emoji_names().values())).map(What),
    st.builds(What, st.sampled_from(SHAPES + DIGITS), st.sampled_from(sorted(COLORS))),
)
lists = st.lists(whats, min_size=1, max_size=MOST_THINGS)


@given(lists, st.integers(0, 2**40))
def test_things_lie_inside_apart_and_from_left_to_right(wanted, seed):
    scene = layout(wanted, seed)
    assert sorted(thing.what.kind for thing in scene.things) == sorted(what.kind for what in wanted)
    for thing in scene.things:
        assert thing.size / 2 <= thing.x <= SIDE - thing.size / 2
        assert thing.size / 2 <= thing.y <= SIDE - thing.size / 2
    for one, other in combinations(scene.things, 2):
        assert other.x - one.x >= APART
        assert 2 * max(other.x - one.x, abs(other.y - one.y)) >= one.size + other.size
    cell = SIDE // GRID
    assert len({(thing.x // cell, thing.y // cell) for thing in scene.things}) == len(wanted), "one thing to a cell"


def test_a_seed_gives_one_picture_and_another_seed_another():
    wanted = [What("cat"), What("7", "red"), What("star", "blue")]
    first, again, other = layout(wanted, 1), layout(wanted, 1), layout(wanted, 2)
    assert first == again and first.digest == again.digest and draw(first).tobytes() == draw(again).tobytes()
    assert other.digest != first.digest and draw(other).tobytes() != draw(first).tobytes()


@pytest.mark.parametrize("count", [0, MOST_THINGS + 1])
def test_too_few_or_too_many_things_are_refused(count):
    with pytest.raises(UserError, match=str(count)):
        layout([What("cat")] * count, 0)


def test_emoji_are_read_from_text_with_or_without_their_selector():
    assert what_of("🐱 ☂️☂") == [What("cat"), What("umbrella"), What("umbrella")]
    assert what_of("🐱 red-star Blue-7") == [What("cat"), What("star", "red"), What("7", "blue")]
    for wrong in ("🐱x", "🐱 red", "red-", "7", "-star", "red-cat", "<b>"):
        with pytest.raises(UserError, match="is neither one of the"):
            what_of(wrong)


def test_a_scene_is_written_as_its_things_and_a_seed():
    assert scene_of("🐱 red-star #3") == layout([What("cat"), What("star", "red")], 3)
    assert scene_of("🐱#3") == scene_of(" 🐱 # 3 ") and scene_of("🐱") == scene_of("🐱#0") != scene_of("🐱#3")
    for wrong in ("🐱 #x", "🐱 #-1", "🐱 ##3", "🐱 #9999999999", "🐱 #²"):
        with pytest.raises(UserError, match="number of an arrangement"):
            scene_of(wrong)
    with pytest.raises(UserError, match="one to"):
        scene_of("#3")


def test_every_kind_has_a_picture_of_its_own_and_no_two_share_a_name():
    assert len(set(kinds())) == len(kinds())
    names = list(emoji_names().values())
    assert all(sprite_of(What(name)).getextrema()[3][1] > 200 for name in names), "no place of the sheet is empty"
    assert len({sprite_of(What(name)).tobytes() for name in names}) == len(names)
    signs = {sprite_of(What(kind, color)).tobytes() for kind in SHAPES + DIGITS for color in COLORS}
    assert len(signs) == len(SHAPES + DIGITS) * len(COLORS)
    with Image.open(drawing.SHEET) as sheet:
        assert sheet.size == (drawing.COLUMNS * SPRITE, -(-len(names) // drawing.COLUMNS) * SPRITE)


def test_a_larger_drawing_shows_the_same_scene():
    scene = layout([What("cat"), What("heart", "red")], 5)
    large = draw(scene, 3)
    assert large.size == (3 * SIDE, 3 * SIDE)
    small = pixels([large.resize((SIDE, SIDE), Image.Resampling.BOX)])
    assert (small - pixels([draw(scene)])).abs().mean() < 0.03


def cells_with(things: dict[int, tuple[int, int, float]]) -> Cells:
    """Cells of one picture: by cell a kind, a colour, and x inside the cell."""
    thing = torch.full((1, GRID * GRID), -9.0)
    kind = torch.zeros(1, GRID * GRID, len(kinds()))
    color, place = torch.zeros(1, GRID * GRID, 1 + len(COLORS)), torch.full((1, GRID * GRID, 2), 0.5)
    for cell, (its_kind, its_color, x) in things.items():
        thing[0, cell], kind[0, cell, its_kind], color[0, cell, its_color], place[0, cell, 0] = 9, 50, 50, x
    return Cells(thing, kind, color, place)


def test_slots_hold_what_was_found_from_left_to_right():
    slots = slots_of(cells_with({4: (3, 0, 0.5), GRID + 1: (212, 2, 0.9), 3 * GRID + 1: (7, 0, 0.1)}))
    assert slots.filled.tolist() == [[1, 1, 1, 0, 0, 0]]
    assert slots.kind[0, :3].argmax(-1).tolist() == [7, 212, 3]
    assert slots.color[0, :3].argmax(-1).tolist() == [0, 2, 0]
    assert slots.kind[0, 3:].abs().sum() == 0, "empty slots say nothing"


def test_picture_tokens_have_the_width_of_the_model_and_do_not_depend_on_other_pictures():
    torch.manual_seed(0)
    reader = PictureReader(48).eval()
    pictures = [draw(layout([What("cat")] * count, count)) for count in (1, 2, 3)]
    with torch.inference_mode():
        together = reader(pixels(pictures))
    assert together.shape == (3, TOKENS, 48)
    for picture, tokens in zip(pictures, together, strict=True):
        torch.testing.assert_close(reader.read(picture), tokens, rtol=1e-4, atol=1e-4)


def test_the_shipped_reader_finds_what_lies_in_new_scenes():
    """The encoder alone; the card has what the chat model makes of it."""
    width = json.loads((READER / "training.json").read_text())["width"]
    reader = load_reader(READER, width)
    assert sum((READER / name).stat().st_size for name in WEIGHTS) < 15e6
    scenes = [layout([What(kinds()[7 * number % 210]), What("star", "red")], number) for number in range(30)]
    with torch.inference_mode():
        slots = slots_of(reader.encoder(pixels([draw(scene) for scene in scenes])))
    named = [[kinds()[kind] for kind in row.argmax(-1)] for row in slots.kind]
    right = 0
    for names, filled, scene in zip(named, slots.filled, scenes, strict=True):
        right += names[:2] == [thing.what.kind for thing in scene.things] and filled.sum() == 2
    assert right >= 24
