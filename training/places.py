"""Where the steps read and write: build outputs in ``build/`` (not in git), shipped weights in ``models/``."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
MODELS = ROOT / "models"
PROMPTS = ROOT / "prompts"
CORPUS_TOML = Path(__file__).with_name("corpus.toml")
CORPUS_PACKAGES = BUILD / "corpus-packages"
CORPUS = BUILD / "corpus"
TOKENIZER = BUILD / "tokenizer"
LOGS = BUILD / "logs"

PAIR_NAME = "codepair-15M"
"""Folder of the shipped pair under ``models/``; named after the target's size."""

PAIR = MODELS / PAIR_NAME
