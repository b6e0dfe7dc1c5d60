"""Copies trained weights to the shipped pair, with ``pair.json`` and a summary of the training logs.

The pair is replaced atomically, so that a failed installation never leaves a target with another target's drafts.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from decoding.errors import UserError
from decoding.records.fingerprint import fingerprint
from training.distillation import LOSSES
from training.draft import DEFAULT, DRAFTS, RECIPES, earlier_stages
from training.files import replacing_file, replacing_folder
from training.loop import CHECKPOINTS, last_of_log, read_checkpoint
from training.places import CORPUS, MODELS, PAIR, PAIR_NAME
from training.target import TARGET


def copy_model(source: Path, target: Path) -> None:
    """Copies a model's files unless the same weights are there. The card stays; policies of other weights go."""
    if any(target.glob("*.safetensors")) and fingerprint(source) == fingerprint(target):
        return
    for old in target.rglob("*"):
        if old.is_file() and old != target / "README.md":
            old.unlink()
    copy_files(source, target)


def copy_files(source: Path, target: Path) -> None:
    """Copies all files of a folder tree into another folder."""
    for file in sorted(source.rglob("*")):
        if file.is_file():
            place = target / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)


def write_json(path: Path, content: object) -> None:
    """Writes indented JSON atomically."""
    with replacing_file(path) as file:
        json.dump(content, file, indent=1)
        file.write("\n")


def training_facts() -> dict:
    """A summary of the training logs of target and drafts, and the corpus' size."""
    manifest = json.loads((CORPUS / "manifest.json").read_text())
    return {
        "corpus": {
            "train": manifest["train"],
            "held_out": manifest["held_out"],
            "packages": len(manifest["packages"]),
        },
        "target": {part: last_of_log(f"target-{part}") for part in ("first", "deepened", "unlooped")},
        "drafts": {name: last_of_log(f"draft-{name}") | {"loss": setting(f"draft-{name}", "loss")} for name in RECIPES},
        "drafts_earlier": {name: earlier_stages(name) for name in RECIPES},
        "losses": {loss: last_of_log(f"loss-{loss}") for loss in LOSSES},
        "losses_target": setting("loss-kl", "target"),
    }


def setting(run: str, name: str) -> str:
    """A setting of a run (``loss``, or ``target``'s fingerprint); empty without a checkpoint."""
    path = CHECKPOINTS / f"{run}.pt"
    return read_checkpoint(path)["settings"][name] if path.is_file() else ""


def install() -> Path:
    """Copies the target and the drafts distilled from it into ``models/<pair>``; returns that folder.

    Raises UserError if the target or all drafts are missing, or a draft was distilled from other weights.
    """
    if not (TARGET / "config.json").is_file():
        raise UserError("There is no trained target yet. Run `python -m training target` first.")
    drafts = drafts_of(fingerprint(TARGET))
    with replacing_folder(PAIR) as pair:
        if PAIR.is_dir():
            copy_files(PAIR, pair)
        copy_model(TARGET, pair / "target")
        for name in drafts:
            copy_model(DRAFTS / name, pair / "drafts" / name)
        write_json(pair / "pair.json", describe(drafts))
        write_json(pair / "training.json", training_facts())
        shutil.copyfile(CORPUS / "manifest.json", pair / "corpus.json")
    if not (MODELS / "index.json").is_file():
        write_json(MODELS / "index.json", {"default": PAIR_NAME})
    return PAIR


def drafts_of(target: str) -> list[str]:
    """The trained drafts. Raises UserError if there is none or one learned from another target."""
    drafts = [name for name in RECIPES if (DRAFTS / name / "config.json").is_file()]
    if not drafts:
        raise UserError("There is no trained draft yet. Run `python -m training draft` first.")
    for name in drafts:
        if setting(f"draft-{name}", "target") not in ("", target):
            raise UserError(
                f"The draft {name} learned from another target. Remove draft-{name}.pt and train it again "
                f"(`python -m training draft --name {name}`), or remove its folder from build/drafts."
            )
    return drafts


def describe(drafts: list[str]) -> dict:
    """The content of ``pair.json``."""
    return {
        "name": PAIR_NAME,
        "title": "Codepair 15M: Python and the prose in it",
        "description": "A Llama of 16 layers trained from nothing on permissive Python packages, and a draft "
        "distilled from what it writes. Small enough for a CPU; knows little.",
        "target": "target",
        "drafts": {name: f"drafts/{name}" for name in drafts},
        "default_draft": DEFAULT if DEFAULT in drafts else drafts[0],
        "draft_weights": "int8",
    }
