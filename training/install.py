"""Copies trained drafts to the folder of the shipped pair, with ``pair.json`` and their figures on held-out texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from decoding.engines.slim import SCREEN_FILE
from decoding.errors import UserError
from decoding.files import whole_folder, write_whole
from decoding.lookahead.fitted import FOLDER as FITTED
from decoding.lookahead.ngrams import Ngrams, write_ngrams
from decoding.records.pairs import BLOCK, FEATURE, HEADS
from decoding.records.weights import fingerprint
from training import DRAFTS, PAIR, TEXTS
from training.loop import last_of_log

from .card import READING, write_card
from .data import read_texts
from .distil import facts_of, measure_installed, tokens_seen
from .drafts import DEFAULT, RECIPES
from .feature_drafts import RECIPES as FEATURE_RECIPES
from .feature_drafts import log_of, measure_trained
from .measure import facts_of_texts
from .teacher import model, turns_of

FACTS_FILE = "alignment.json"


def install(report: Callable[[str], None]) -> Path:
    """Copies every trained draft to ``models/<pair>`` and measures it; returns that folder. Raises UserError.

    Drafts of text are installed if the default one was trained here, those that read states if any of them was.
    """
    names = [name for name in _trained(RECIPES) if tokens_seen(name)]
    reading = [name for name in _trained(FEATURE_RECIPES) if last_of_log(log_of(name))]
    if DEFAULT not in names and not reading:
        raise UserError("There is no default draft yet. Run `python -m training align draft --minutes 60` first.")
    facts = read_json(PAIR / FACTS_FILE)
    if DEFAULT in names:
        facts["texts"] = facts_of_texts(TEXTS)
        facts["drafts"] = facts.get("drafts", {}) | _install_drafts(names, report)
    if reading:
        of_text = [name for name in reading if name in RECIPES]
        further = [name for name in of_text if not _is_same(DRAFTS / name, PAIR / "drafts" / name)]
        before = facts.get(READING, {})
        facts[READING] = before | _install_reading(reading, report)
        for name, figures in measure_installed(further, report).items():
            row, more, earlier = facts["drafts"][name], facts[READING][name], before.get(name)
            # A longer run continues a shorter one, which the draft's sums have already.
            counted = earlier if earlier and earlier["steps"] < more["steps"] else dict.fromkeys(more, 0)
            sums = {key: row[key] + more[key] - counted[key] for key in ("steps", "minutes", "tokens")}
            facts["drafts"][name] = row | figures | sums
    write_json(PAIR / FACTS_FILE, facts)
    write_card(PAIR)
    return PAIR


def _trained(recipes: Mapping[str, object]) -> list[str]:
    return [name for name in recipes if (DRAFTS / name / "config.json").is_file()]


def _install_drafts(names: Sequence[str], report: Callable[[str], None]) -> dict:
    """Copies drafts that read the text alone; returns their facts."""
    chat_model = model()
    before, texts = turns_of(chat_model.tokenizer()).before, read_texts(TEXTS, "train")
    write_ngrams(DRAFTS / DEFAULT, Ngrams.count([*before, *text.ids.tolist()] for text in texts))  # for all drafts
    _add_to_pair({name: f"drafts/{name}" for name in names})
    figures = measure_installed(names, report)
    return {name: figures[name] | facts_of(name) for name in names}


def _install_reading(names: Sequence[str], report: Callable[[str], None]) -> dict:
    """Copies drafts that read the target's states, and those of text that learned beside them; returns their facts."""
    _add_to_pair({name: _reading_entry(name) for name in names})
    figures = measure_trained(names)
    for name, row in figures.items():
        report(f"{name}: first guesses hold at {row['first']:.3f}")
    return figures


def _reading_entry(name: str) -> dict | str:
    """A draft that reads states, as pair.json has it."""
    recipe, folder = FEATURE_RECIPES[name], f"drafts/{name}"
    kind = HEADS if recipe.heads else BLOCK if recipe.block else FEATURE
    return {"folder": folder, "kind": kind, "layers": list(recipe.layers)} if recipe.layers else folder


def _copy(source: Path, place: Path) -> None:
    """Copies a draft. Keeps its fitted policies and its screen only if the weights are unchanged."""
    same = _is_same(source, place)
    with whole_folder(place, is_whole=lambda: False) as new:
        shutil.copytree(source, new, dirs_exist_ok=True)
        for fitted in (FITTED, Path(SCREEN_FILE).parent):
            if same and (place / fitted).is_dir():
                shutil.copytree(place / fitted, new / fitted)


def _is_same(source: Path, place: Path) -> bool:
    return place.is_dir() and fingerprint(source) == fingerprint(place)


def _add_to_pair(drafts: Mapping[str, str | dict]) -> None:
    """Copies trained drafts beside those that the pair has, and describes them in its ``pair.json``."""
    for name in drafts:
        _copy(DRAFTS / name, PAIR / "drafts" / name)
    before = read_json(PAIR / "pair.json")
    content = {
        "name": PAIR.name,
        "title": "SmolLM2 135M: a chat model",
        "description": "SmolLM2-135M-Instruct, and drafts trained on its own answers.",
        "target": "target",
        "drafts": before.get("drafts", {}) | drafts,
        "default_draft": before.get("default_draft", DEFAULT),
        "draft_weights": "int4",
        "pictures": "pictures",
        "chat": True,
        "about": "chats in English, often wrong",
    }
    write_json(PAIR / "pair.json", content)


def write_json(path: Path, content: object) -> None:
    """Writes ``content`` atomically. Raises OSError."""
    write_whole(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> dict:
    """The content of ``path``; nothing where there is no such file."""
    return json.loads(path.read_text()) if path.is_file() else {}
