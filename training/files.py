"""Atomic replacement of files and folders whose errors are sentences: write to a temporary neighbour, then rename.

A killed run leaves at most a hidden ``.part``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from decoding import files
from decoding.errors import UserError


@contextmanager
def explained_errors(target: Path) -> Iterator[None]:
    """Turns errors of a full disk or missing permissions while ``target`` is written into a UserError."""
    try:
        yield
    except Exception as error:
        # safetensors and tokenizers raise other exceptions, which name the OS error in their text only.
        if not isinstance(error, OSError) and "(os error " not in str(error):
            raise
        raise UserError(
            f"Could not write {target.name}: {getattr(error, 'strerror', None) or error}. Free some space or "
            "check the permissions; the previous version is unchanged."
        ) from error


@contextmanager
def replacing_file(target: Path, mode: str = "w") -> Iterator[IO]:
    """As :func:`decoding.files.replacing_file`. Raises UserError if ``target`` cannot be written."""
    with explained_errors(target), files.replacing_file(target, mode) as file:
        yield file


def write_json(path: Path, content: object) -> None:
    """Writes ``content`` atomically. Raises UserError."""
    with replacing_file(path) as file:
        json.dump(content, file, indent=1)
        file.write("\n")


@contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """Yields an empty temporary folder; swaps it into place if the block succeeds."""
    beside = target.with_name(f".{target.name}.part")
    with explained_errors(target):
        put_back(target)
        shutil.rmtree(beside, ignore_errors=True)
        try:
            beside.mkdir(parents=True)
            yield beside
            swap(beside, target)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def swap(beside: Path, target: Path) -> None:
    """Renames ``beside`` to ``target``. The old folder is removed last, or restored on failure."""
    before = before_of(target)
    try:
        if target.exists():
            target.replace(before)
        beside.replace(target)
    finally:
        put_back(target)


def put_back(target: Path) -> None:
    """Undoes a killed or failed swap: restores the old folder if there is no new one."""
    before = before_of(target)
    if before.exists() and not target.exists():
        before.replace(target)
    shutil.rmtree(before, ignore_errors=True)


def before_of(target: Path) -> Path:
    """Where the old folder waits during a swap."""
    return target.with_name(f".{target.name}.before")
