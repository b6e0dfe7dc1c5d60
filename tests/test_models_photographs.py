"""Targets of transformers that read photographs, with drafts that read the text alone."""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from decoding.cli.compare import _repeated
from decoding.engines.pair import Pair, load_pair
from decoding.errors import UserError
from decoding.loop.drafting import prefill
from decoding.pictures.photo import NAMED, SIDE, pack_file, photo_of
from decoding.records.request import CompareRequest
from decoding.records.run_file import load_run, run_from_json, run_to_json
from decoding.records.trace import Run
from viz.settings import command_line

from .commands import command
from .tiny_seeing import MAKERS, QwenProcessor
from .toy import finished_run

LANES = ["autoregressive", "static:7", "oracle", "ngram/static:3", "tree:4"]
QUESTION = "What is <image>?"


@pytest.fixture(scope="module", params=MAKERS)
def pair(request, tmp_path_factory) -> Iterator[Pair]:
    """A tiny pair of one of the families."""
    folder = tmp_path_factory.mktemp(request.param)
    MAKERS[request.param](folder)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "qwen2.5-vl":
            real, stand_in = AutoProcessor.from_pretrained, QwenProcessor(AutoTokenizer.from_pretrained(folder))
            made_here = lambda place, **options: stand_in if Path(place) == folder else real(place, **options)  # noqa: E731
            patch.setattr(AutoProcessor, "from_pretrained", made_here)
        yield load_pair(target=str(folder), draft=str(folder / "draft"), dtype="float32", device="cpu")


def noise(path: Path, size=(60, 40), kind: str = "PNG", **more) -> Path:
    Image.effect_noise(size, 90).convert("RGB").save(path, kind, **more)
    return path


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> str:
    return pack_file(noise(tmp_path_factory.mktemp("pictures") / "noise.png"))


def generated(pair: Pair, picture: str, n: int) -> list[int]:
    """The text of transformers' own processor and ``generate``, of a question that names no special token."""
    processor = AutoProcessor.from_pretrained(pair.target_folder)
    model = AutoModelForImageTextToText.from_pretrained(pair.target_folder, dtype=torch.float32).eval()
    content = [{"type": "image"}, {"type": "text", "text": "What is this?"}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(text=text, images=[photo_of(picture)], return_tensors="pt", add_special_tokens=False)
    return model.generate(**inputs, max_new_tokens=n, do_sample=False)[0, inputs["input_ids"].shape[1] :].tolist()


def test_every_lane_writes_the_text_of_generate(pair, picture):
    asked = CompareRequest("What is this?", LANES, 16, chat=True, repeats=1, picture=picture)
    run = finished_run(asked, pair)
    expected = generated(pair, picture, 16)
    assert len(set(expected)) > 3
    assert all(trace.output == expected and trace.verdict.same for trace in run.lanes)
    prompt = pair.encode_prompt("What is this?", True, picture=picture)
    assert not torch.equal(pair.target.prefill(prompt), pair.target.prefill(prompt.with_grey()))


def test_the_run_file_names_the_photograph_and_holds_a_small_preview(pair, picture):
    run = finished_run(CompareRequest(QUESTION, ["autoregressive"], 4, chat=True, repeats=1, picture=picture), pair)
    assert run.settings.picture == NAMED + run.picture.digest and len(run.picture.preview) < 40_000
    assert (run.picture.width, run.picture.height) == (60, 40) and run.lanes[0].p_grey
    assert picture not in run_to_json(run) and run_from_json(run_to_json(run)) == run
    with pytest.raises(UserError, match="give the picture file again"):
        finished_run(run.settings, pair)


def test_the_draft_gets_the_text_and_no_typed_name_becomes_a_token(pair, picture):
    prompt = pair.encode_prompt(QUESTION, True, picture=picture)
    image = pair.tokenizer.encode_part("<image>", False)[0]
    assert image in prompt.ids[prompt.at : prompt.at + prompt.n_placeholders] and image not in prompt.text
    assert QUESTION in pair.tokenizer.decode(prompt.text)


def test_a_text_after_a_picture_begins_at_its_own_first_position(pair, picture):
    """Also one of a single token, of which nothing is read in advance."""
    prefill(pair.target, pair.encode_prompt("What is this?", True, picture=picture))
    prefill(pair.target, [5])
    assert pair.target._places(2) == {}


def test_what_is_no_photograph_is_refused(pair, picture):
    asked = CompareRequest(QUESTION, ["autoregressive"], 4, chat=True, repeats=1, picture=picture)
    for change, words in (
        ({"picture": "🐱🐶"}, "reads photographs"),
        ({"picture": "data:text/html;base64,PGI+"}, "not a picture"),
        ({"picture": "data:image/png;base64,AAAA"}, "not a picture"),
        ({"picture": "data:image/png;base64,AAAAA"}, "not a picture"),
        ({"picture": picture, "system": "Be kind."}, "system message"),
    ):
        with pytest.raises(UserError, match=words):
            finished_run(replace(asked, **change), pair)


def test_files_are_checked_made_small_and_encoded_again(tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    exif[0x0112] = 6  # lies on its side
    packed = pack_file(noise(tmp_path / "a.jpg", (2000, 1000), "JPEG", exif=exif))
    image = photo_of(packed)
    assert image.size == (SIDE // 2, SIDE) and not image.getexif() and len(packed) < 400_000
    (tmp_path / "b.png").write_bytes(b"<svg onload=alert(1)>")
    noise(tmp_path / "c.gif", kind="GIF")
    (tmp_path / "d.png").write_bytes((tmp_path / "a.jpg").read_bytes()[:3000])
    for name in ("b.png", "c.gif", "d.png"):
        with pytest.raises(UserError, match=f"{name} is not a picture"):
            pack_file(tmp_path / name)
    with pytest.raises(UserError, match="Cannot read the picture"):
        pack_file(tmp_path / "none.png")
    Image.new("1", (9000, 9000)).save(tmp_path / "bomb.png")
    with pytest.raises(UserError, match="pixels"):
        pack_file(tmp_path / "bomb.png")


@pytest.mark.parametrize("pair", ["llava"], indirect=True)  # commands do alike with all families
def test_a_run_is_repeated_with_its_photograph_which_its_file_holds_on_demand(pair, picture, tmp_path):
    """The command that the page copies names FILE in place of the photograph, since a run does not hold it."""
    asked = CompareRequest(QUESTION, ["autoregressive", "static:2"], 6, chat=True, repeats=1, picture=picture)
    asked = replace(asked, target=str(pair.target_folder), draft=str(pair.target_folder / "draft"), dtype="float32")
    copied = shlex.split(command_line(finished_run(asked, pair).asked))[4:]
    assert "--image=FILE" in copied and not any(word.startswith("--picture") for word in copied)
    photo, named_file, held_file, again_file = (str(tmp_path / name) for name in ("a.png", "named", "held", "again"))
    noise(Path(photo))

    def compared(file: str, *words: str) -> Run:
        done = command("compare", *words, "--out", file)
        assert done.status == 0 and "Same text" in done.out, done.err
        return load_run(Path(file))

    named_photo = [word.replace("FILE", photo) for word in copied]
    named, held = compared(named_file, *named_photo), compared(held_file, *named_photo, "--hold-image")
    assert named.picture.width == 60 and named.picture.file == "" and photo_of(held.picture.file).size == (60, 40)
    assert "Give one picture" in command("compare", *named_photo, "--picture", "🐱").err
    assert "give the picture file again" in command("compare", "--again", named_file).err
    other = noise(tmp_path / "other.png", (50, 40))
    assert _repeated(held, other)[0].picture == pack_file(other) != _repeated(held, None)[0].picture
    for words in ([held_file], [named_file, "--image", photo]):
        run = compared(again_file, "--again", *words)
        assert run.picture.digest == named.picture.digest and run.lanes[0].output == named.lanes[0].output
