"""Scenes as data, their drawing, and a target that reads them, with drafts that read the text alone."""

import json
from base64 import b64decode
from dataclasses import replace
from io import BytesIO
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

from decoding.analysis.seen import Seen, count_seen, log_probability, probabilities, seen_sentence
from decoding.bench.lossless import check_lossless, transformers_reference
from decoding.cli.show import remarks, summary
from decoding.comparison.kept_texts import KeptTexts
from decoding.comparison.prepare import prepare
from decoding.engines.pair import Pair, load_pair
from decoding.engines.picture_encoder import GRID, TOKENS, WEIGHTS, Cells, PictureReader, load_reader, pixels, slots_of
from decoding.engines.seeing import SceneEyes
from decoding.errors import UserError
from decoding.loop.drafting import start_text
from decoding.pictures import scenes
from decoding.pictures.photo import packed
from decoding.pictures.scenes import SIDE, What, draw, kinds, layout, scene_of, sprite_of
from decoding.records.pairs import DraftKind
from decoding.records.request import CompareRequest, check_request
from decoding.records.run_file import run_from_json, run_to_json
from decoding.records.suites import load_suite
from decoding.records.trace import Run
from viz.export import export_html
from viz.player.details import token_details
from viz.player.payload import run_payload

from .tiny_chat import make_tiny_chat
from .tiny_models import write_lively_weights
from .toy import finished_run

SCENES = ["🐱🐶 #1", "red-star blue-7 🚗🚗 #2"]
QUESTION = "word3 word4 word5"
ASKED = CompareRequest(QUESTION, ["autoregressive", "static:3"], 24, chat=True, repeats=1, picture=SCENES[0])


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Pair:
    """A tiny chat model of random weights with its own first layer as a draft, and a picture reader."""
    folder, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    make_tiny_chat(folder)
    make_tiny_chat(draft)
    write_lively_weights(folder, draft)
    made = load_pair(target=str(folder), draft=str(draft), dtype="float32", device="cpu")
    made.eyes = SceneEyes(make_reader(tmp_path_factory.mktemp("reader")), made.target.hidden_size)
    return made


@pytest.fixture
def run(pair, made=[]) -> Run:  # noqa: B006 (the run is made once)
    """A copy of a finished run of ASKED."""
    made or made.append(run_to_json(finished_run(ASKED, pair)))
    return run_from_json(made[0])


def make_reader(folder):
    """A reader of random weights that sees things in all cells."""
    torch.manual_seed(0)
    reader = PictureReader(64)
    with torch.no_grad():
        reader.encoder.head.bias[0] = 9
        reader.projector.words.weight.normal_()
    for name, part in zip(WEIGHTS, (reader.encoder, reader.projector), strict=True):
        save_file(part.state_dict(), folder / name)
    return folder


def encode(pair: Pair, picture: str):
    return pair.encode_prompt(QUESTION, chat=True, picture=picture)


def test_every_lane_writes_the_text_of_generate_with_the_same_picture(pair):
    prompts = [encode(pair, scene) for scene in SCENES]
    reference = transformers_reference(pair.target_folder)
    *_, counts = check_lossless(pair, reference, prompts, 24, caps=range(1, 8, 3))
    assert counts.different == [] and counts.compared == counts.equal + counts.near_ties > 60
    assert reference(prompts[0], 24).tokens != reference(prompts[1], 24).tokens, "the text depends on the picture"


def test_the_picture_stands_before_the_question_and_the_draft_does_not_get_it(pair):
    prompt, text = encode(pair, SCENES[0]), pair.encode_prompt(QUESTION, chat=True)
    source = prepare(replace(ASKED, lanes=["static:3"]), pair).source(pair.default_draft)
    start_text(pair.target, [source], prompt)
    assert prompt.text == text.ids and pair.draft().length == len(text) - 1
    assert len(prompt) == len(text) + TOKENS == pair.target.length + 1
    assert pair.tokenizer.decode(prompt.ids[prompt.at + TOKENS :]).startswith(QUESTION)
    assert prompt.digest.startswith(scene_of(SCENES[0]).digest) and prompt.key != encode(pair, SCENES[1]).key
    assert not torch.equal(prompt.embeddings, prompt.grey) and torch.equal(prompt.grey, encode(pair, SCENES[1]).grey)


def test_a_run_says_which_picture_was_read_and_what_a_grey_one_would_have_changed(run, pair):
    assert run_from_json(run_to_json(run)) == run and run.settings.picture == SCENES[0]
    assert run.picture.digest == scene_of(SCENES[0]).digest and run.picture.n_tokens == TOKENS
    assert all(trace.verdict.same for trace in run.lanes)
    assert all(repeat.prefill_s > run.picture.seconds > 0 for trace in run.lanes for repeat in trace.repeats)
    for trace in run.lanes:
        seen = [token.p_target for iteration in trace.iterations for token in iteration.tokens]
        assert all(token.draft_choice == token.id for it in trace.iterations for token in it.drafted), "a blind draft"
        assert len(trace.p_grey) == len(seen) and trace.p_grey != pytest.approx(seen, abs=1e-3)
    grey = pair.encode_prompt(QUESTION, chat=True, picture=SCENES[0]).with_grey()
    pair.target.prefill(grey)
    first = torch.softmax(pair.target.prefill(grey)[-1, : pair.target.vocab_size], -1)[run.lanes[0].output[0]]
    assert run.lanes[0].p_grey[0] == pytest.approx(first.item(), abs=1e-5)


def test_a_draft_that_sees_reads_what_the_target_reads(pair, run, monkeypatch):
    monkeypatch.setattr(pair, "draft_kinds", {pair.default_draft: DraftKind(sees=True)})
    prepared = prepare(replace(ASKED, lanes=["static:3"]), pair)
    start_text(pair.target, [prepared.source(pair.default_draft)], prepared.prompt)
    assert pair.draft().length == pair.target.length == len(prepared.prompt) - 1
    seen = finished_run(replace(ASKED, lanes=[*ASKED.lanes, "oracle"]), pair)
    assert all(trace.verdict.same for trace in seen.lanes)
    oracle, chain = seen.lanes[2], seen.chains[pair.default_draft]
    assert not any(token.fate == "rejected" for iteration in oracle.iterations for token in iteration.drafted)
    assert all(token.p_draft is not None for iteration in seen.lanes[1].iterations for token in iteration.tokens)
    assert chain.along.p != run.chains[pair.default_draft].along.p, "the blind one reads something else"


def test_without_a_picture_nothing_is_said_of_one(pair):
    run = finished_run(replace(ASKED, picture=""), pair)
    assert run.picture is None and all(trace.p_grey == [] for trace in run.lanes)
    assert run_payload(run)["picture"] is None and seen_sentence(run, run.lanes[1]) == ""


def test_broken_pictures_in_run_files_are_refused(run):
    data = json.loads(run_to_json(run))
    for change, words in (
        (lambda run: run["picture"].update(preview='"><script>'), "preview"),
        (lambda run: run["picture"].update(digest="../x"), "digest"),
        (lambda run: run["picture"].update(n_tokens=10**6), "longer than its prompt"),
        (lambda run: run["lanes"][0]["p_grey"].pop(), "grey picture"),
    ):
        broken = json.loads(json.dumps(data))
        change(broken)
        with pytest.raises(UserError, match=words):
            run_from_json(json.dumps(broken))


@pytest.mark.parametrize(
    "change, words",
    [
        ({"picture": "a photograph"}, "neither one of the"),
        ({"picture": packed(Image.new("RGB", (40, 30)))}, "only drawn scenes"),
        ({"picture": "🐱" * 7}, "one to"),
        ({"picture": "🐱 #x"}, "arrangement"),
        ({"picture": "🐱" * 500}, "characters"),
        ({"chat": False}, "part of a chat"),
    ],
)
def test_pictures_that_cannot_be_read_end_in_a_sentence(pair, change, words):
    with pytest.raises(UserError, match=words):
        prepare(replace(ASKED, **change), pair)


def test_a_target_without_eyes_refuses_a_picture(pair, monkeypatch):
    monkeypatch.setattr(pair, "eyes", None)
    with pytest.raises(UserError, match="reads no pictures"):
        prepare(ASKED, pair)


def test_texts_of_two_pictures_are_kept_apart(pair):
    kept, (one, other) = KeptTexts(pair, 8), (encode(pair, scene) for scene in SCENES)
    kept.add(one, [3])
    kept.close()
    again = KeptTexts(pair, 8)
    assert again.get(one) == [3] and again.get(other) is None and again.get(one.ids) is None


def test_a_prompt_is_another_one_for_another_picture_reader(pair, monkeypatch):
    before = encode(pair, SCENES[0]).key
    monkeypatch.setattr(pair.eyes, "_weights_digest", "other weights")
    assert encode(pair, SCENES[0]).key != before


def test_the_suite_asks_about_scenes_that_can_be_drawn():
    prompts = load_suite("pictures")
    assert len({prompt.picture for prompt in prompts}) == len(prompts) >= 90
    for prompt in prompts:
        scene_of(prompt.picture)
        check_request(CompareRequest(prompt.prompt, picture=prompt.picture))


def test_what_the_picture_decides_is_counted_and_said(run):
    trace, seen = run.lanes[1], count_seen(run.lanes[1])
    trace.p_grey[:] = [p / 3 for p, _ in probabilities(trace)]
    rejected = sum(token.fate == "rejected" for it in trace.iterations for token in it.drafted)
    n = len(trace.output)
    assert rejected > 3 and count_seen(trace) == Seen(n, n, rejected, rejected) and seen.tokens == n
    every = f"Of {rejected} corrections, {rejected} came at words that the picture decides. "
    assert seen_sentence(run, trace) == every + f"Of {n} tokens the picture decides {n}."
    first = next(at for at, it in enumerate(trace.iterations) if it.emitted and it.emitted.fate == "correction")
    one = replace(trace, iterations=trace.iterations[: first + 1])
    assert seen_sentence(run, one).startswith("Of 1 correction, 1 came at words")
    trace.p_grey[:] = [p / 1.5 for p, _ in probabilities(trace)]
    assert count_seen(trace) == Seen(n, 0, rejected, 0)
    assert seen_sentence(run, run.lanes[0]).startswith(f"Of {n} tokens the picture")
    assert any("corrections, 0 came" in line for line in remarks(run))
    assert summary(run)["lanes"][1]["picture"]["rejected_by_picture"] == 0


def test_the_page_shows_the_picture_and_each_token_s_log_probability_without_it(run):
    payload = run_payload(run)
    assert payload["picture"]["alt"].startswith("A drawn scene, from left to right: ")
    drawn = Image.open(BytesIO(b64decode(payload["picture"]["src"].removeprefix("data:image/png;base64,"))))
    assert drawn.size == (2 * SIDE, 2 * SIDE) and ["picture", SCENES[0]] in payload["settings"]
    assert [f"picture: {TOKENS} tokens", True] in payload["read"] and payload["seen"]
    trace, iteration = run.lanes[1], run.lanes[1].iterations[0]
    found = [token_details(run, 1, 0, index)["picture"] for index in range(iteration.n_drafted + 1)]
    assert all(found[: iteration.n_accepted + 1]) and not any(found[iteration.n_accepted + 1 : iteration.n_drafted])
    assert found[-1]["rows"][1][1] == round(log_probability(trace.p_grey[iteration.n_accepted]), 2)
    trace.p_grey[iteration.n_accepted] = 0.0
    decided = token_details(run, 1, 0, iteration.n_drafted)["picture"]
    assert decided["text"].startswith("The picture decided this: ") and decided["rows"][1][2] == 0
    assert "img-src data:" in export_html(run) and payload["picture"]["src"] in export_html(run)


def test_a_run_of_another_version_s_scene_opens_without_its_drawing(run):
    run.settings = replace(run.settings, picture="☃️☄️")
    assert run_payload(run)["picture"]["src"] == ""


# -- scenes, their drawing, and what reads them

READER = Path(__file__).resolve().parents[1] / "models" / "smollm2-135m" / "pictures"
whats = st.one_of(
    st.sampled_from(sorted(scenes.emoji_names().values())).map(What),
    st.builds(What, st.sampled_from(scenes.SHAPES + scenes.DIGITS), st.sampled_from(sorted(scenes.COLORS))),
)
lists = st.lists(whats, min_size=1, max_size=scenes.MOST_THINGS)


@given(lists, st.integers(0, 2**40))
def test_things_lie_inside_apart_and_from_left_to_right(wanted, seed):
    scene = layout(wanted, seed)
    assert sorted(thing.what.kind for thing in scene.things) == sorted(what.kind for what in wanted)
    for thing in scene.things:
        assert thing.size / 2 <= thing.x <= SIDE - thing.size / 2
        assert thing.size / 2 <= thing.y <= SIDE - thing.size / 2
    for one, other in combinations(scene.things, 2):
        assert other.x - one.x >= scenes.APART
        assert 2 * max(other.x - one.x, abs(other.y - one.y)) >= one.size + other.size
    cell = SIDE // GRID
    assert len({(thing.x // cell, thing.y // cell) for thing in scene.things}) == len(wanted), "one thing to a cell"


def test_a_seed_gives_one_picture_and_another_seed_another():
    wanted = [What("cat"), What("7", "red"), What("star", "blue")]
    first, again, other = layout(wanted, 1), layout(wanted, 1), layout(wanted, 2)
    assert first == again and first.digest == again.digest and draw(first).tobytes() == draw(again).tobytes()
    assert other.digest != first.digest and draw(other).tobytes() != draw(first).tobytes()


@pytest.mark.parametrize("count", [0, scenes.MOST_THINGS + 1])
def test_too_few_or_too_many_things_are_refused(count):
    with pytest.raises(UserError, match=str(count)):
        layout([What("cat")] * count, 0)


def test_emoji_are_read_from_text_with_or_without_their_selector():
    assert scenes.what_of("🐱 ☂️☂") == [What("cat"), What("umbrella"), What("umbrella")]
    assert scenes.what_of("🐱 red-star Blue-7") == [What("cat"), What("star", "red"), What("7", "blue")]
    for wrong in ("🐱x", "🐱 red", "red-", "7", "-star", "red-cat", "<b>"):
        with pytest.raises(UserError, match="is neither one of the"):
            scenes.what_of(wrong)


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
    names = list(scenes.emoji_names().values())
    assert all(sprite_of(What(name)).getextrema()[3][1] > 200 for name in names), "no place of the sheet is empty"
    signs = [What(kind, color) for kind in scenes.SHAPES + scenes.DIGITS for color in scenes.COLORS]
    for drawn in ([What(name) for name in names], signs):
        assert len({sprite_of(what).tobytes() for what in drawn}) == len(drawn)
    with Image.open(scenes.SHEET) as sheet:
        assert sheet.size == (scenes.COLUMNS * scenes.SPRITE, -(-len(names) // scenes.COLUMNS) * scenes.SPRITE)


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
    color, place = torch.zeros(1, GRID * GRID, 1 + len(scenes.COLORS)), torch.full((1, GRID * GRID, 2), 0.5)
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
    new = [layout([What(kinds()[7 * number % 210]), What("star", "red")], number) for number in range(30)]
    with torch.inference_mode():
        slots = slots_of(reader.encoder(pixels([draw(scene) for scene in new])))
    named = [[kinds()[kind] for kind in row.argmax(-1)] for row in slots.kind]
    right = 0
    for names, filled, scene in zip(named, slots.filled, new, strict=True):
        right += names[:2] == [thing.what.kind for thing in scene.things] and filled.sum() == 2
    assert right >= 24
