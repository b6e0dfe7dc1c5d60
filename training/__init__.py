"""Trains drafts for the chat model: what its steps read and write, build outputs in ``build/`` (not in git) and shipped
weights in ``models/``.

The trainers of the small pair and of the picture reader are in the history: their cards name the commits.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINTS = ROOT / "build" / "checkpoints"
LOGS = ROOT / "build" / "logs"
PAIR = ROOT / "models" / "smollm2-135m"
"""The pair that drafts are aligned for."""
TEXTS = ROOT / "build" / "align" / "texts"
DRAFTS = ROOT / "build" / "align" / "drafts"
SUITE_FILE = ROOT / "prompts" / "chat.jsonl"
