"""Drafts that every pair has because they need no model: names and words. Imports no torch.

The code that guesses is in ``decoding.loop.drafting``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelFree:
    """``source`` names what guesses; ``caption`` explains it to newcomers."""

    name: str
    source: str
    caption: str


PROMPT_LOOKUP = ModelFree("ngram", "prompt lookup", "no small model: it copies from the text so far")
MODEL_FREE = {one.name: one for one in (PROMPT_LOOKUP,)}
