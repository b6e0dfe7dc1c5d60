"""Installation of a trained pair: atomic, and only of parts that belong together. On tiny models."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from decoding.errors import UserError
from decoding.records.fingerprint import fingerprint
from training import install
from training.architecture import Shape, save_model
from training.loop import CHECKPOINT_KEYS
from training.tokenizer import build_tokenizer

DRAFT = "default-2x256"


@pytest.fixture
def build(tmp_path, monkeypatch):
    """A build folder with a target, one draft and a corpus' manifest, to be installed under ``models/``."""
    for name, place in {
        "TARGET": "build/target",
        "DRAFTS": "build/drafts",
        "CHECKPOINTS": "build/checkpoints",
        "CORPUS": "build/corpus",
        "MODELS": "models",
        "PAIR": "models/pair",
    }.items():
        monkeypatch.setattr(install, name, tmp_path / place)
    manifest = {"train": {}, "held_out": {}, "packages": []}
    for folder in ("build/corpus", "build/checkpoints", "models"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "build/corpus/manifest.json").write_text(json.dumps(manifest))
    save(tmp_path / "build/target", 1)
    save(tmp_path / "build/drafts" / DRAFT, 2)
    return tmp_path / "build"


def save(folder, seed):
    torch.manual_seed(seed)
    model = Shape(1, 64, 96).build(300, 64)
    save_model(model, folder, build_tokenizer(["def f(x): return x"] * 3, 290))


def marks(pair):
    return fingerprint(pair / "target"), fingerprint(pair / "drafts" / DRAFT)


def test_a_pair_is_installed_and_replaced_as_a_whole(build):
    pair = install.install()
    assert marks(pair) == (fingerprint(build / "target"), fingerprint(build / "drafts" / DRAFT))
    (pair / "target" / "README.md").write_text("card")
    (pair / "drafts" / DRAFT / "policies").mkdir()
    (pair / "drafts" / DRAFT / "policies" / "disco.json").write_text("{}")
    save(build / "target", 3)
    install.install()
    assert fingerprint(pair / "target") == fingerprint(build / "target")
    assert (pair / "target" / "README.md").read_text() == "card"
    assert (pair / "drafts" / DRAFT / "policies" / "disco.json").is_file(), "the draft's weights are the same"
    save(build / "drafts" / DRAFT, 4)
    install.install()
    assert not (pair / "drafts" / DRAFT / "policies" / "disco.json").exists()
    assert json.loads((pair / "pair.json").read_text())["default_draft"] == DRAFT


@pytest.mark.parametrize("trouble", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_installation_that_ends_early_leaves_the_good_pair(build, monkeypatch, trouble):
    pair = install.install()
    before = marks(pair)
    save(build / "target", 3)
    save(build / "drafts" / DRAFT, 4)
    copies, copyfile = [], shutil.copyfile

    def copy(source, place):
        copies.append(place)
        if build / "drafts" in source.parents:  # the new target is copied by then
            raise trouble
        return copyfile(source, place)

    monkeypatch.setattr(install.shutil, "copyfile", copy)
    with pytest.raises((UserError, KeyboardInterrupt)):
        install.install()
    assert copies and marks(pair) == before
    assert [path.name for path in pair.parent.iterdir() if path.is_dir()] == ["pair"]


def test_what_is_missing_or_does_not_belong_is_reported(build):
    torch.save(
        dict.fromkeys(CHECKPOINT_KEYS) | {"settings": {"target": "another"}},
        build / "checkpoints" / f"draft-{DRAFT}.pt",
    )
    with pytest.raises(UserError, match="learned from another target"):
        install.install()
    shutil.rmtree(build / "drafts")
    with pytest.raises(UserError, match="no trained draft yet"):
        install.install()
    shutil.rmtree(build / "target")
    with pytest.raises(UserError, match="no trained target yet"):
        install.install()
    assert not (build.parent / "models" / "pair").exists()
