"""The progress of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """``fraction`` is of the stage ("chains", "costs", "clock", "tables")."""

    stage: str
    message: str
    fraction: float
