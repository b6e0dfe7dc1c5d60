"""The paths and Hub ids by which other engines find the models of an installed pair. Imports no torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..errors import UserError
from ..files import cache_folder, safe_name
from ..records.fingerprint import fingerprint
from ..records.gguf_record import GgufRecord, read_record
from ..records.pairs import MODELS, embedded_pairs
from .advice import recommend
from .results import DraftsResult, Recommendation


def advise(result: DraftsResult, anywhere: bool = False) -> Recommendation:
    """The recommendation of ``result``; its settings name the models of an installed pair by where they are.

    ``anywhere``: by Hub ids and paths within the repository alone, for a file that is read on other machines.
    """
    pair = next((one for one in embedded_pairs() if one.name == result.setting.pair), None)
    if pair is None:
        return result.recommendation
    record = read_record(pair.target)
    folders = {name: Path(place) for name, place in pair.drafts.items()}
    if not anywhere:
        folders = {name: _unpacked_draft(folder, record) or folder for name, folder in folders.items()}
    drafts = [
        replace(draft, source=_shown(folders[draft.name]) if draft.name in folders else draft.source)
        for draft in result.drafts
    ]
    target = _shown(Path(pair.target))
    if record is not None:
        target = str(record.unpacked) if not anywhere and record.unpacked.is_dir() else _hub_id(record)
    advice = recommend(drafts, target, result.setting.costs)
    folder = folders.get(advice.draft)
    return replace(
        advice, sentences=[*advice.sentences, *([_whole(folder)] if folder and not _is_whole(folder) else [])]
    )


def _hub_id(record: GgufRecord) -> str:
    return record.card.removeprefix("https://huggingface.co/")


def _unpacked_draft(folder: Path, record: GgufRecord | None) -> Path | None:
    """The folder in the cache where a draft that shares weights with its target is whole, once it has run here."""
    name = f"{safe_name(folder.name)}-{fingerprint(folder)}-{record.mark if record else ''}"
    try:
        whole = cache_folder() / "models" / name
    except UserError:  # there is no cache folder
        return None
    return whole if whole.is_dir() else None


def _is_whole(folder: Path) -> bool:
    """Whether transformers can load ``folder``: a draft's own weights alone have another name."""
    return any(folder.glob("model*.safetensors"))


def _whole(folder: Path) -> str:
    return (
        f"{_shown(folder)} lacks the weights that the draft shares with its target. Once the pair has run, the whole "
        f"model is in ~/.cache/speculoscope/models/{folder.name}-..., or in $SPECULOSCOPE_CACHE/models: give other "
        "engines that path."
    )


def _shown(folder: Path) -> str:
    """``folder`` relative to the project's folder, if it is inside."""
    return str(folder.relative_to(MODELS.parent)) if folder.is_relative_to(MODELS.parent) else str(folder)
