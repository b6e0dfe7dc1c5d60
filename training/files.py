"""Writing beside and renaming, so that no half-written file or folder ever stands where a good one stood.

A run that is killed leaves at most a hidden ``.part`` beside, which the next one overwrites.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from decoding.errors import UserError


@contextmanager
def telling_trouble(target: Path) -> Iterator[None]:
    """Turns what a full disk or missing rights raise while ``target`` is written into a UserError."""
    try:
        yield
    except Exception as error:
        # Beside OSError: safetensors' own error, and a bare Exception of tokenizers, tell it in their text.
        if not isinstance(error, OSError) and "(os error " not in str(error):
            raise
        raise UserError(
            f"Could not write {target.name}: {getattr(error, 'strerror', None) or error}. Free some space or "
            "check the rights; what stood there before is unchanged."
        ) from error


@contextmanager
def replacing_file(target: Path, mode: str = "w") -> Iterator[IO]:
    """Opens a file beside ``target``; renames it over ``target`` when the block ends well."""
    beside = target.with_name(f".{target.name}.part")
    with telling_trouble(target):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with beside.open(mode, **({} if "b" in mode else {"encoding": "utf-8"})) as file:
                yield file
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)


@contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """Gives an empty folder beside ``target``; swaps it into place when the block ends well."""
    beside = target.with_name(f".{target.name}.part")
    with telling_trouble(target):
        put_back(target)
        shutil.rmtree(beside, ignore_errors=True)
        try:
            beside.mkdir(parents=True)
            yield beside
            swap(beside, target)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def swap(beside: Path, target: Path) -> None:
    """Renames ``beside`` to ``target``; the folder that stood there goes last, or back where that fails."""
    before = before_of(target)
    try:
        if target.exists():
            target.replace(before)
        beside.replace(target)
    finally:
        put_back(target)


def put_back(target: Path) -> None:
    """Ends a swap that was killed or that failed: the old folder goes back where no new one stands."""
    before = before_of(target)
    if before.exists() and not target.exists():
        before.replace(target)
    shutil.rmtree(before, ignore_errors=True)


def before_of(target: Path) -> Path:
    """Where a folder stands while another takes its place."""
    return target.with_name(f".{target.name}.before")
