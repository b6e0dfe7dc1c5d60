"""The player: why a token was kept, text that cannot escape, and colours that are readable and mean one thing each."""

import colorsys
import json
import re
from dataclasses import replace
from itertools import combinations
from math import dist

import pytest

from decoding.errors import UserError
from decoding.lookahead.spec import all_specs
from decoding.records.pairs import find_pair
from decoding.records.trace import TokenText
from tests.runs import make_run
from viz import scripts as bundle
from viz.export import export_html, json_for_script
from viz.page import head
from viz.player.details import token_details
from viz.player.names import N_COLOURS, STATIC_SHADES, SYMBOLS, lane_style
from viz.scripts import player_css, player_js


def first(run, fate):
    for i, iteration in enumerate(run.lanes[1].iterations):
        for index, token in enumerate(iteration.all_tokens):
            if token.fate == fate:
                return 1, i, index, token
    raise AssertionError(f"no {fate} token")


@pytest.fixture(scope="module")
def run():
    return make_run(lanes=("autoregressive", "static:5", "disco:0.6"))


@pytest.mark.parametrize("fate", ["accepted", "rejected", "dropped", "correction", "bonus"])
def test_every_fate_has_its_reason(run, fate):
    lane, i, index, token = first(run, fate)
    details = token_details(run, lane, i, index)
    assert details["fate"] == fate
    assert details["text"] == run.vocab[token.id].text
    assert details["why"].endswith(".")
    assert f"iteration {i + 1}" in details["where"]


def test_a_token_that_is_part_of_a_character_is_shown_by_its_bytes(run):
    lane, i, index, token = first(run, "accepted")
    split = replace(run, vocab=run.vocab | {token.id: TokenText("\ufffd", bytes="c3")})
    assert token_details(split, lane, i, index)["text"] == "bytes c3"


def test_greedy_shows_both_first_choices(run):
    run.vocab[1000] = TokenText(" left")
    run.vocab[1001] = TokenText(" right\n")
    lane, i, index, token = first(run, "rejected")
    token.draft_choice, token.target_choice = 1000, 1001
    why = token_details(run, lane, i, index)["why"]
    assert why == "The draft's first choice is “·left”, the target's is “·right↵”."


def test_the_policy_shows_score_and_threshold(run):
    trace = run.lanes[2]
    i = next(k for k, it in enumerate(trace.iterations) if it.n_drafted > 1 and it.stop == "policy")
    last = trace.iterations[i].n_drafted - 1
    token = trace.iterations[i].drafted[last]
    expected = f"Policy: score {token.score:.3f} against the threshold 0.600: then checked."
    assert token_details(run, 2, i, last)["policy"] == expected
    assert token_details(run, 2, i, 0)["policy"].endswith("kept guessing.")


def test_sampling_shows_p_q_ratio_and_draw():
    run = make_run(rule="sampling")
    lane, i, index, token = first(run, "rejected")
    token.p_draft, token.p_target, token.accept_probability, token.draw = 0.8, 0.2, 0.25, 0.9
    details = token_details(run, lane, i, index)
    assert details["why"] == "Kept with probability min(1, p/q) = 0.250; the draw 0.900 is not below it: rejected."
    assert ["ratio p/q", "0.250"] in details["rows"] and ["draw", "0.900"] in details["rows"]


def test_coupling_names_the_shared_noise():
    run = make_run(rule="coupling")
    lane, i, index, _ = first(run, "rejected")
    details = token_details(run, lane, i, index)
    assert "with the same noise" in details["why"]
    assert details["rows"][-1][0] == "shared noise"


@pytest.mark.parametrize("place", [(9, 0, 0), (0, 99999, 0), (0, 0, 50), (-1, 0, 0), (0, -1, 0)])
def test_a_token_that_is_not_there_is_a_sentence(run, place):
    with pytest.raises(UserError, match="no such token"):
        token_details(run, *place)


def test_no_text_can_end_the_json_block():
    hostile = "</script><!--\u2028\u2029 & <b>"
    written = json_for_script({"text": hostile})
    assert not re.search("[<>&\u2028\u2029]", written)
    assert json.loads(written) == {"text": hostile}


def test_every_module_is_part_of_a_script():
    entries = [bundle.VIZ / name / "js" / "main.js" for name in ("assets", "learn")]
    used = {path for entry in entries for path in bundle._modules(entry)}
    rooms = [bundle.VIZ / room / "js" for room in ("core", "player", "learn", "assets")]
    assert used == {path for room in rooms for path in room.iterdir()}


@pytest.mark.parametrize(
    ("sources", "sentence"),
    [
        ({"main": 'import { b } from "./other.js";\n', "other": "export const a = 1;\n"}, "imports b, which other.js"),
        ({"main": 'import "./other.js";\n', "other": 'import "./main.js";\n'}, "main.js imports itself, by other.js"),
    ],
    ids=["missing", "circle"],
)
def test_a_wrong_import_is_refused(tmp_path, monkeypatch, sources, sentence):
    monkeypatch.setattr(bundle, "VIZ", tmp_path)
    for name, source in sources.items():
        (tmp_path / f"{name}.js").write_text(source, encoding="utf-8")
    with pytest.raises(ValueError, match=sentence):
        bundle.script("main.js", "Faulty")


def test_the_player_is_one_plain_script():
    assert player_js().count("window.Speculoscope =") == 1
    assert not re.search(r"^\s*(import|export)\b|\brequire\(", player_js(), flags=re.M)
    modules = bundle._modules(bundle.VIZ / "player" / "js" / "main.js").values()
    assert all(module in head() for module in modules)  # the same as the dashboard's
    assert player_css() in head()


def test_the_export_is_one_file_that_asks_for_nothing_else():
    """It holds the details of every token, as plain data."""
    page = export_html(make_run(hostile=True))
    assert page.count("<script") == 4 and page.count("</script>") == 4  # two of data, the player, its start
    assert re.findall(r"<style>\n(.*?)\n</style>", page, flags=re.S) == [player_css()]
    scripts = re.findall(r"<script>\n(.*?)\n</script>", page, flags=re.S)
    assert scripts[0] == player_js() and "class " not in scripts[1] and len(scripts) == 2
    assert "default-src 'none'" in page
    code = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.S)
    assert "window.hacked" not in code
    assert not re.search(r"""(?:src|href)\s*=|@import|url\(|https?://(?!www\.w3\.org)""", code)


# -- colours: readable in both themes, and no hue with two meanings

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


def linear(color):
    return [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in rgb(color)]


def luminance(color):
    r, g, b = linear(color)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


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
    r, g, b = linear(color)
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
