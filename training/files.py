"""Writing beside and renaming, so that no half-written file or folder ever stands where a good one stood."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from decoding.errors import UserError


def _explain(error: OSError, target: Path) -> UserError:
    return UserError(
        f"Could not write {target.name}: {error.strerror or error}. Free some space or check the rights; "
        "what stood there before is unchanged."
    )


@contextmanager
def replacing_file(target: Path, mode: str = "w") -> Iterator[IO]:
    """Opens a file beside ``target``; renames it over ``target`` when the block ends well."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with beside.open(mode, **({} if "b" in mode else {"encoding": "utf-8"})) as file:
            yield file
        beside.replace(target)
    except OSError as error:
        raise _explain(error, target) from error
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """Gives an empty folder beside ``target``; swaps it into place when the block ends well."""
    beside, before = target.with_name(f".{target.name}.part"), target.with_name(f".{target.name}.before")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(before, ignore_errors=True)
        beside.mkdir(parents=True)
        yield beside
        if target.exists():
            target.replace(before)
        beside.replace(target)
    except OSError as error:
        raise _explain(error, target) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(before, ignore_errors=True)
