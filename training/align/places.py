"""Folders and files that the alignment of drafts reads and writes."""

from __future__ import annotations

from training.places import BUILD, MODELS, PROMPTS

from .teacher import ChatModel

PAIR = MODELS / "smollm2-135m"
TEXTS = BUILD / "align" / "texts"
DRAFTS = BUILD / "align" / "drafts"
SUITE_FILE = PROMPTS / "chat.jsonl"


def model() -> ChatModel:
    """The chat model that drafts are aligned to. Raises UserError if it is not available."""
    return ChatModel.of_pair(PAIR)
