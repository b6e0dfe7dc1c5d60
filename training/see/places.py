"""Folders and files that the training of the picture reader reads and writes."""

from __future__ import annotations

from training.places import BUILD, MODELS

STATES = BUILD / "see"
SHIPPED = MODELS / "smollm2-135m" / "sees"
