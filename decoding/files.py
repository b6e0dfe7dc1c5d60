"""Files: the cache folder, temporary folders, atomic writes of files and folders, digests and safe names, and JSON
Lines from which interrupted work resumes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL
from pathlib import Path
from typing import IO, Any, BinaryIO

from .errors import UserError, explained

if sys.platform != "win32":
    import fcntl

_BLOCK = 1 << 20
os.umask(_UMASK := os.umask(0))  # which permissions this user does not give
_OWNER = "owner"  # in a ProcessFolder: the file that its process keeps locked


def cache_folder() -> Path:
    """The folder for reproducible files: SPECULOSCOPE_CACHE, or a folder in the user's cache (XDG)."""
    own = os.environ.get("SPECULOSCOPE_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "speculoscope"


def costs_folder() -> Path:
    """The folder for what was measured of models on this machine: SPECULOSCOPE_COSTS, or one in the cache folder, whose
    number changes with an engine that is faster: what was measured of another one no longer holds.
    """
    return Path(os.environ.get("SPECULOSCOPE_COSTS") or cache_folder() / "costs-4").expanduser()


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes ``path`` atomically. Text is UTF-8. Raises OSError."""
    with replacing_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file to be written, which then becomes ``path`` atomically, or the file that this links to;
    nothing is left of it after an error. A file that is replaced keeps its permissions.

    Raises OSError, also for what is there and is no regular file.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError(EINVAL, "it is no regular file", str(path))
    permissions = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_UMASK
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
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


class Lines:
    """One JSON Lines file whose first line says under which ``key`` it was made.

    A last line that a kill cut short is dropped. Where the key differs, ``stale`` decides: "refuse" raises
    UserError, "restart" begins a new file (for data that can be computed again from other files). Raises UserError
    where the file cannot be read or written, too. Several processes may add to one file.
    """

    def __init__(self, path: Path, key: dict[str, Any], stale: str = "refuse") -> None:
        self.path = path
        self.key = json.loads(json.dumps(key))
        with explained(f"Cannot use {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():  # a device is read without end
                raise UserError(f"{path} is no regular file: name another.")
            with path.open("ab") as file, locked(file):
                self.records = self._open(stale)
            self._file = path.open("a", encoding="utf-8")

    def add(self, record: dict[str, Any]) -> None:
        """Write one record through to the file. Raises UserError where that fails."""
        with explained(f"Cannot write {self.path.name}"), locked(self._file):
            self._file.write(json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n")
            self._file.flush()
        self.records.append(record)

    def close(self) -> None:
        self._file.close()

    def _open(self, stale: str) -> list[dict[str, Any]]:
        lines, begun = read_lines(self.path), self.path.stat().st_size > 0
        if begun and lines[:1] != [self.key]:
            if stale == "refuse":
                key = lines[0] if lines else {}
                different = ", ".join(name for name in self.key if key.get(name) != self.key[name]) or "version"
                raise UserError(
                    f"{self.path} contains other work (different {different}): choose another place, or delete it."
                )
            lines = []
        self._mend([self.key, *lines[1:]])
        return lines[1:]

    def _mend(self, records: list[dict[str, Any]]) -> None:
        """Makes the file consist of ``records``, in place where it begins with them: another process may add to it."""
        whole, found = "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in records), self.path.read_bytes()
        if not found:
            self.path.write_text(whole, encoding="utf-8")
        elif found.startswith(whole.encode()):
            os.truncate(self.path, len(whole.encode()))
        else:
            write_whole(self.path, whole)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file, the key first; [] if there is no file. Raises OSError."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            record = json.loads(line)
        except ValueError:
            break  # cut short: what follows, if anything, cannot be trusted
        if not isinstance(record, dict):
            break
        found.append(record)
    return found
