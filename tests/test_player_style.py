"""The player's colours: readable in both themes, and no hue with two meanings."""

import colorsys
import re
from itertools import combinations
from math import dist

import pytest

from decoding.lookahead.spec import all_specs
from decoding.records.pairs import find_pair
from viz.core.assets import player_css, player_js
from viz.player.lane_styles import N_COLOURS, STATIC_SHADES, SYMBOLS, lane_style

TEXT = ("ink", "mute", "acc", "rej", "drop", "cor", "bon")
GROUNDS = ("bg", "card", "soft")
FATES, LANES, PASSES = ("acc", "rej", "cor", "bon"), tuple(f"l{n}" for n in range(1, N_COLOURS)), ("guess",)


def themes():
    """Every block of colour variables, by its number: light, dark."""
    blocks = re.findall(r"\{([^{}]*--sd-bg:[^{}]*)\}", player_css())
    return [dict(re.findall(r"--sd-([\w-]+):\s*(#[0-9a-f]{6})", block)) for block in blocks]


@pytest.fixture(params=[0, 1], ids=["light", "dark"])
def theme(request):
    return themes()[request.param]


def rgb(color):
    return [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def luminance(color):
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in rgb(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_both_themes_have_the_same_variables():
    light, dark = themes()
    assert light.keys() == dark.keys()


def test_text_reaches_aa_on_every_ground(theme):
    low = {(a, b): contrast(theme[a], theme[b]) for a in TEXT for b in GROUNDS if contrast(theme[a], theme[b]) < 4.5}
    assert low == {}


def test_marks_of_lanes_and_passes_stand_out(theme):
    for name in ("l0", *LANES, *(f"l1{shade}" for shade in STATIC_SHADES), "check"):
        assert contrast(theme[name], theme["card"]) >= 3, name


def test_no_hue_has_two_meanings(theme):
    hues = {name: 360 * colorsys.rgb_to_hsv(*rgb(theme[name]))[0] for name in FATES + LANES + PASSES}
    for one, other in combinations(hues, 2):
        apart = abs(hues[one] - hues[other])
        assert min(apart, 360 - apart) >= 15, (one, other)


def test_the_shades_of_static_lanes_tell_apart(theme):
    shades = {shade: lab(theme[f"l1{shade}"]) for shade in ("", *STATIC_SHADES)}
    near = {pair: dist(*map(shades.get, pair)) for pair in combinations(shades, 2)}
    assert min(near.values()) >= 15, near  # CIE76; 2.3 is just noticeable


def lab(color):
    """CIE L*a*b* (D65) of a colour."""
    r, g, b = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in rgb(color))
    rows = ((0.4124, 0.3576, 0.1805, 0.9505), (0.2126, 0.7152, 0.0722, 1.0), (0.0193, 0.1192, 0.9505, 1.089))
    x, y, z = (((r * u + g * v + b * w) / white) ** (1 / 3) for u, v, w, white in rows)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_the_script_writes_text_only_as_text():
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", player_js())


def test_a_lane_looks_the_same_wherever_it_stands():
    lanes = [{"static": "static:5", "tree": "tree:8"}.get(name, name) for name in all_specs()]
    looks = [lane_style(lane) for lane in lanes]
    assert len({look.colour for look in looks}) == len({look.symbol for look in looks}) == len(lanes)
    offered = [lane for lane in all_specs()["static"].offered if lane != "static:5"]
    statics = [lane_style(lane) for lane in (*offered, "static:2", "static:5", "static:7", "static:10")]
    assert len({look.symbol for look in statics}) == len({look.colour for look in statics}) == len(statics)
    assert all(look.colour.startswith("--sd-l1") for look in statics)  # shades: the hue is the policy's
    assert lane_style("confidence:0.4") == lane_style("confidence")
    drafts = ["", *(f"{name}/" for name in (*find_pair("smollm2-135m").drafts, "ngram"))]
    for policy in ("static:5", "disco", "costaware:0.8"):  # one policy raced with several drafts
        assert len({lane_style(draft + policy) for draft in drafts}) == len(drafts)
    assert len({lane_style(f"{draft}static:{sl}") for draft in drafts for sl in (2, 3, 5, 7)}) == 4 * len(drafts)
    assert lane_style("a policy of the future").colour == "--sd-l0"


def test_every_shape_of_the_figures_is_drawn_by_the_player():
    drawn = set(re.findall(r"\.sd-shape-([\w-]+)", player_css())) | {"square"}
    assert drawn == set(SYMBOLS)
