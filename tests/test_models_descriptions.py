"""pair.json: what it says of a pair, which pair serves, and a sentence for each file that describes none."""

import json
from pathlib import Path

import pytest

from decoding.engines import sources
from decoding.errors import UserError
from decoding.records import pairs
from decoding.records.pairs import DraftKind, read_pair


def describe(folder: Path, **fields) -> Path:
    """``folder`` with the description of a pair that has one draft; ``fields`` are added or replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    title, drafts = f"The {folder.name} pair", {"a": "drafts/a"}
    about = {"title": title, "target": "target", "drafts": drafts, "default_draft": "a", "chat": True}
    (folder / "pair.json").write_text(json.dumps(about | fields))
    return folder


@pytest.fixture
def models(tmp_path, monkeypatch) -> Path:
    """A folder in place of models/."""
    monkeypatch.setattr(pairs, "MODELS", tmp_path)
    monkeypatch.setattr(pairs, "_described", pairs._described.__wrapped__)  # remembers no earlier folder
    return tmp_path


def test_drafts_have_kinds_and_number_formats_and_a_target_may_read_pictures(tmp_path):
    feature = {"folder": "drafts/b", "kind": "feature", "layers": [2, 15, -1]}
    drafts = {"a": "drafts/a", "b": feature, "c": {"folder": "drafts/c", "sees": True}, "d": {"folder": "drafts/d"}}
    pair = read_pair(describe(tmp_path, drafts=drafts, draft_weights={"a": "int4"}, pictures="pictures"))
    assert pair.drafts == {name: str(tmp_path / "drafts" / name) for name in "abcd"}
    assert pair.draft_kinds == {"b": DraftKind("feature", (2, 15, -1)), "c": DraftKind(sees=True)}
    assert pair.kind_of("a") == DraftKind() and [pair.weights_of(name) for name in "ab"] == ["int4", "auto"]
    assert pair.pictures == str(tmp_path / "pictures") and read_pair(describe(tmp_path)).pictures == ""


def test_a_pair_has_the_name_in_its_description(models):
    describe(models / "folder", name="chatty", about="Talks.")
    assert pairs.embedded_pairs()[0].name == pairs.find_pair().name == "chatty"
    assert pairs.is_asked(None, "chatty") and pairs.about_pair("chatty") == "Talks."
    assert not pairs.is_asked(None, "folder")


NO_PAIR = "mine/pair.json does not describe a pair"


@pytest.mark.parametrize(
    "broken, words",
    [
        ("{", "Cannot read mine/pair.json"),
        ("[]", "mine/pair.json does not contain a JSON object"),
        ('{"target": "t"}', f"{NO_PAIR}: at drafts: Field required"),
        ({"drafts": []}, NO_PAIR),
        ({"drafts": {"a": {"kind": "feature"}}}, NO_PAIR),
        ({"drafts": {"a": {"folder": "a", "layers": ["2"]}}}, NO_PAIR),
        ({"drafts": {"a": {"folder": "a", "kind": 3}}}, NO_PAIR),
        ({"default_draft": "two"}, "two is not among its drafts"),
        ({"draft_weights": {"two": "int8"}}, f"{NO_PAIR}: two is not among"),
        ({"draft_weights": {"a": "int2"}}, f"{NO_PAIR}: at draft_weights"),
        ({"draft_weights": "int2"}, f"{NO_PAIR}: at draft_weights"),
        ({"draft_weights": ["a"]}, f"{NO_PAIR}: at draft_weights"),
        ({"draft_weights": True}, f"{NO_PAIR}: at draft_weights"),
    ],
)
def test_a_broken_description_is_a_sentence(tmp_path, broken, words):
    folder = describe(tmp_path / "mine", **(broken if isinstance(broken, dict) else {}))
    if isinstance(broken, str):
        (folder / "pair.json").write_text(broken)
    with pytest.raises(UserError, match=words):
        read_pair(folder)


def test_a_broken_description_costs_its_own_pair_alone(models):
    describe(models / "small")
    (describe(models / "broken") / "pair.json").write_text("{")
    (models / "index.json").write_text('{"default": "broken"}')
    serving, broken = pairs.embedded_pairs()
    assert serving.name == "small" and serving.note.startswith("Cannot read broken/pair.json")
    assert not broken.loadable and pairs.find_pair().name == "small"
    with pytest.raises(UserError, match="The pair broken cannot be loaded: Cannot read"):
        pairs.find_pair("broken")
    assert pairs.is_asked(None, "small") and not pairs.is_asked(None, "broken")


def test_where_no_pair_is_installed(models):
    with pytest.raises(UserError, match="No pair is installed: name a target and a draft"):
        pairs.find_pair()


@pytest.mark.parametrize("place", ["./nowhere", "~nobody-of-this-name/x", "x" * 300, "a\x00b"])
def test_a_folder_that_is_not_there(place):
    with pytest.raises(UserError, match="There is no folder"):
        sources.local_folder(place)
    with pytest.raises(UserError, match="There is no folder"):
        sources.make_source(f"{place}.gguf", "", None)
