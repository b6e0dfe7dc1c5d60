"""Puts trained weights where the project ships them, with ``pair.json`` and the facts of their training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from decoding.errors import UserError
from decoding.fingerprint import fingerprint
from training.draft import DEFAULT, DRAFTS, RECIPES
from training.files import replacing_file, replacing_folder
from training.loop import last_of_log
from training.places import CORPUS, MODELS, PAIR, PAIR_NAME
from training.target import TARGET

BF16_DRAFTS = ("half-6x256",)
"""Drafts that stay in bf16: this one stands for a draft of about half the target's cost."""


def copy_model(source: Path, target: Path) -> None:
    """Copies a model's files unless the same weights stand there. A card stays; policies of other weights
    go.
    """
    if target.is_dir() and any(target.glob("*.safetensors")) and fingerprint(source) == fingerprint(target):
        return
    with replacing_folder(target) as folder:
        for file in source.iterdir():
            shutil.copyfile(file, folder / file.name)
        if (target / "README.md").is_file():
            shutil.copyfile(target / "README.md", folder / "README.md")


def write_json(path: Path, content: object) -> None:
    """Writes indented JSON beside and renames."""
    with replacing_file(path) as file:
        json.dump(content, file, indent=1)
        file.write("\n")


def training_facts() -> dict:
    """What the logs tell of the training of the target and of each draft, and the corpus' size."""
    manifest = json.loads((CORPUS / "manifest.json").read_text())
    return {
        "corpus": {
            "train": manifest["train"],
            "held_out": manifest["held_out"],
            "packages": len(manifest["packages"]),
        },
        "target": {part: last_of_log(f"target-{part}") for part in ("first", "deepened")},
        "drafts": {name: last_of_log(f"draft-{name}") for name in RECIPES},
        "losses": {loss: last_of_log(f"loss-{loss}") for loss in ("kl", "tv", "ce")},
    }


def install() -> Path:
    """Copies the target and the drafts distilled from it into ``models/<pair>``; returns that folder."""
    if not (TARGET / "config.json").is_file():
        raise UserError("There is no trained target yet. Run `python -m training target` first.")
    copy_model(TARGET, PAIR / "target")
    drafts = [name for name in RECIPES if (DRAFTS / name / "config.json").is_file()]
    for name in drafts:
        copy_model(DRAFTS / name, PAIR / "drafts" / name)
    if drafts:
        write_json(PAIR / "pair.json", describe(drafts))
        write_json(MODELS / "index.json", {"default": PAIR_NAME})
    write_json(PAIR / "training.json", training_facts())
    shutil.copyfile(CORPUS / "manifest.json", PAIR / "corpus.json")
    return PAIR


def describe(drafts: list[str]) -> dict:
    """The content of ``pair.json``."""
    return {
        "name": PAIR_NAME,
        "title": "Codepair 15M: Python and the prose in it",
        "description": "A Llama of 16 layers trained from nothing on permissive Python packages, and drafts "
        "distilled from what it writes. Small enough for a CPU; knows little.",
        "target": "target",
        "drafts": {name: f"drafts/{name}" for name in drafts},
        "default_draft": DEFAULT if DEFAULT in drafts else drafts[0],
        "int8_drafts": [name for name in drafts if name not in BF16_DRAFTS],
    }
