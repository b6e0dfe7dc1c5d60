"""Files: the cache folder, temporary folders, atomic writes of files and folders, digests and safe names."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL
from pathlib import Path
from typing import IO, BinaryIO

if sys.platform != "win32":
    import fcntl

_BLOCK = 1 << 20
os.umask(_UMASK := os.umask(0))  # which permissions this user does not give
_OWNER = "owner"  # in a ProcessFolder: the file that its process keeps locked


def cache_folder() -> Path:
    """The folder for reproducible files: SPECULOSCOPE_CACHE, or a folder in the user's cache (XDG)."""
    own = os.environ.get("SPECULOSCOPE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "speculoscope"


def costs_folder() -> Path:
    """The folder for what was measured of models on this machine: SPECULOSCOPE_COSTS, or one in the cache folder, whose
    number changes with an engine that is faster: what was measured of another one no longer holds.
    """
    return Path(os.environ.get("SPECULOSCOPE_COSTS") or cache_folder() / "costs-4")


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes ``path`` atomically. Text is UTF-8. Raises OSError."""
    with replacing_file(path, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing_file(path: Path, mode: str = "w") -> Iterator[IO]:
    """Opens a temporary file in ``mode``, which then becomes ``path`` atomically, or the file that this links to;
    nothing is left of it after an error. A file that is replaced keeps its permissions.

    Text is UTF-8. Raises OSError, also for what is there and is no regular file.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError(EINVAL, "it is no regular file", str(path))
    permissions = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_UMASK
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
        os.chmod(beside, permissions)
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


@contextmanager
def locked(file: IO) -> Iterator[None]:
    """Other processes that lock ``file`` wait meanwhile, where files can be locked."""
    if sys.platform != "win32":
        with suppress(OSError):  # some network file systems
            fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if sys.platform != "win32":
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def whole_folder(folder: Path, is_whole: Callable[[], bool]) -> Iterator[Path]:
    """A new folder to be filled, which then becomes ``folder`` atomically; nothing is left of it after an error.

    If another process was faster, its folder stays if ``is_whole()`` accepts it, and is replaced otherwise. Raises
    OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield beside
        os.chmod(beside, 0o777 & ~_UMASK)
        try:
            os.replace(beside, folder)
        except OSError:
            if not is_whole():
                _swap(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _swap(beside: Path, folder: Path) -> None:
    """Puts ``beside`` in the place of ``folder``, which stays as it was if that fails. Raises OSError."""
    before = beside.with_name(f"{beside.name}.before")
    os.replace(folder, before)
    try:
        os.replace(beside, folder)
    except OSError:
        os.replace(before, folder)
        raise
    shutil.rmtree(before)


class ProcessFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder that ends with its process: the next one of that prefix removes those of killed processes.

    The process keeps a file in it locked, and the system releases the lock however the process ends.
    """

    def __init__(self, prefix: str) -> None:
        _remove_abandoned(prefix)
        super().__init__(prefix=prefix, ignore_cleanup_errors=True)
        self._owner = _claim(Path(self.name))

    def cleanup(self) -> None:
        super().cleanup()
        if self._owner:
            self._owner.close()


def _claim(folder: Path) -> BinaryIO | None:
    """The owner's file of ``folder``, locked before it has its name; None where files cannot be locked."""
    if sys.platform == "win32":
        return None
    beside = folder / f".{_OWNER}"
    owner = beside.open("wb")
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # some network file systems
        owner.close()
        return None
    beside.rename(folder / _OWNER)
    return owner


def _remove_abandoned(prefix: str) -> None:
    """Removes this user's folders of that prefix whose owner's file is no longer locked."""
    if sys.platform == "win32":
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # its process is alive, or it is being removed
            if folder.lstat().st_uid == os.getuid():
                with (folder / _OWNER).open("rb") as owner:
                    fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the program as Ctrl-C does, so that files are cleared away; afterwards it is handled as before."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def sha256_of(data: bytes | str) -> str:
    """The SHA-256 of ``data`` in hex digits; of text in UTF-8."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """The SHA-256 of a file in hex digits. Raises OSError."""
    digest = hashlib.sha256()
    _add_content(digest, path)
    return digest.hexdigest()


def digest_of(data: bytes) -> str:
    """The first 16 hex digits of the SHA-256 of ``data``."""
    return sha256_of(data)[:16]


def digest_of_files(paths: Iterable[Path]) -> str:
    """The first 16 hex digits of a SHA-256 over names and contents of ``paths``. Raises OSError."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0")
        _add_content(digest, path)
    return digest.hexdigest()[:16]


def _add_content(digest: hashlib._Hash, path: Path) -> None:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)


def safe_name(text: str) -> str:
    """``text`` as a file name: everything except letters, digits, -, _ and . becomes _."""
    return "".join(char if char.isalnum() or char in "-_." else "_" for char in text)
