"""Whether shipped figures belong to the weights that are installed."""

from __future__ import annotations

from pathlib import Path

from decoding.evaluation.results import Setting
from decoding.records.fingerprint import fingerprint
from decoding.records.pairs import PairDescription

STALE = "measured with weights other than the installed ones: measure again"


def is_stale(setting: Setting, pair: PairDescription) -> bool:
    """Whether the figures were measured with other weights than those installed; False if none are."""
    places = (pair.target, setting.target_fingerprint), (pair.drafts.get(setting.draft, ""), setting.draft_fingerprint)
    here = [(place, made_with) for place, made_with in places if place and Path(place, "config.json").is_file()]
    return any(fingerprint(place) != made_with for place, made_with in here)
